//! What cannot become a manifest is refused in one sentence that says what to write.

use crate::launch::support::{finish, phalanx};

fn refused(args: &[&str], says: &[&str]) {
    for kind in ["job", "jobset", "trainjob"] {
        let args: Vec<&str> = ["kube", kind].into_iter().chain(args.iter().copied()).collect();
        let done = finish(&mut phalanx(&args));
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{args:?}: {done:?}");
        for text in says {
            assert!(done.stderr.contains(text), "{args:?} should say {text:?}: {}", done.stderr);
        }
    }
}

#[test]
fn what_is_missing_is_named_with_what_to_write() {
    refused(&["--nodes", "2", "--", "true"], &["no image is given", "--image registry.example/train:1"]);
    refused(&["--image", "", "--nodes", "2", "--", "true"], &["no image is given"]);
    refused(&["--image", "i", "--", "true"], &["no number of pods", "--nodes 4"]);
    refused(&["--image", "i", "--nodes", "2"], &["no command is given", "-- python train.py"]);
    refused(&["--image", "i", "--nodes", "2", "--"], &["no command is given"]);
    refused(&["--image", "i", "--nodes", "2", "--", ""], &["no command is given"]);
}

#[test]
fn numbers_and_names_that_kubernetes_does_not_take() {
    let asked = |flags: &[&'static str]| [&["--image", "i"], flags, &["--", "true"]].concat();
    for bad in ["0", "-1", "two", "1.5"] {
        refused(&asked(&["--nodes", bad]), &["write a whole number of pods from 1"]);
        refused(&asked(&["--nodes", "2", "--slots", bad]), &["write a whole number of ranks in each pod"]);
    }
    refused(&asked(&["--nodes", "2", "--slots", "1025"]), &["from 1 to 1024"]);
    refused(&asked(&["--nodes", "70000"]), &["70000 ranks", "lower --nodes or --slots"]);
    for bad in ["Resnet", "7up", "a_b", "a.b", "-a", "a-", ""] {
        refused(
            &asked(&["--nodes", "2", format!("--name={bad}").leak()]),
            &["write a DNS label", "--name resnet-7"],
        );
    }
    let long: &'static str = "a".repeat(62).leak();
    refused(
        &asked(&["--nodes", "12", "--name", long]),
        &["is too long", "DNS allows 63", "write a name of at most"],
    );
    refused(&asked(&["--nodes", "2", "--namespace", "My Lab"]), &["--namespace lab"]);
    refused(&asked(&["--nodes", "2", "--secret", "hunter2 hunter2"]), &["not the secret itself"]);
    refused(&asked(&["--nodes", "2", "--memory", "16GB"]), &["e.g. 16Gi or 512Mi"]);
    refused(&asked(&["--nodes", "2", "--memory", "500m"]), &["e.g. 16Gi or 512Mi"]);
    refused(&asked(&["--nodes", "2", "--cpu", "2Gi"]), &["e.g. 4 or 500m"]);
    refused(&asked(&["--nodes", "2", "--fs-group", "users"]), &["the number of a group, or none"]);
    refused(&asked(&["--nodes", "2", "--start-timeout", "0"]), &["number of seconds from 1"]);
    refused(&["--image", "a b", "--nodes", "2", "--", "true"], &["is no image"]);
    refused(
        &["--image", "IMG:UP:x", "--nodes", "2", "--", "true"],
        &["is no image: write [HOST[:PORT]/]NAME[:TAG]"],
    );
    for bad in ["0", "1.5"] {
        refused(&asked(&["--nodes", "2", "--gpus", bad]), &["write a whole number of GPUs from 1"]);
    }
    refused(
        &asked(&["--nodes", "2", "--memory", "16Gi", "--shm", "17Gi"]),
        &["--shm 17Gi is more than --memory 16Gi", "raise --memory or lower --shm"],
    );
}

#[test]
fn variables_that_would_not_act() {
    let asked = |env: &[&'static str]| [&["--image", "i", "--nodes", "2"], env, &["--", "true"]].concat();
    refused(&asked(&["--env", "A"]), &["write NAME=VALUE"]);
    refused(&asked(&["--env", "PHALANX_SIZE=3"]), &["leave it out"]);
    refused(&asked(&["--env", "PHALANX_SECRET=hunter2hunter2hunter2"]), &["a secret belongs into a Secret"]);
    refused(&asked(&["--env", "PHALANX_TIMEOT=3"]), &["PHALANX_TIMEOT", "PHALANX_TIMEOUT"]);
    refused(&asked(&["--env", "PHALANX_TIMEOUT=soon"]), &["PHALANX_TIMEOUT"]);
    refused(&asked(&["--env", "A=1", "--env", "A=2"]), &["--env A is given twice"]);
}

#[test]
fn a_kind_that_is_not_known_is_refused() {
    let done = finish(&mut phalanx(&["kube", "pod", "--image", "i"]));
    assert!(done.code == Some(2) && done.stderr.contains("pod"), "{done:?}");
}
