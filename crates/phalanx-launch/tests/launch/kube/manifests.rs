//! What manifests say: what goes wrong in clusters if it is forgotten.

use super::{Manifest, printed};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const KINDS: [&str; 3] = ["job", "jobset", "trainjob"];

fn asked(kind: &str, flags: &[&str]) -> Manifest {
    Manifest::of(
        &[&[kind, "--image", "train:1", "--name", "resnet"], flags, &["--", "./train", "--lr", "1"]].concat(),
    )
}

#[test]
fn each_kind_has_its_documents_in_one_namespace() {
    let kinds = [
        vec!["Secret", "Service", "Job"],
        vec!["Secret", "JobSet"],
        vec!["Secret", "TrainingRuntime", "TrainJob"],
    ];
    for (kind, documents) in KINDS.iter().zip(kinds) {
        let manifest = asked(kind, &["--nodes", "2", "--namespace", "lab"]);
        assert_eq!(manifest.kinds(), documents);
        assert!(manifest.0.iter().all(|d| d["metadata"]["namespace"] == "lab"), "{kind}");
        let existing = asked(kind, &["--nodes", "2", "--secret", "key"]);
        assert_eq!(existing.kinds(), documents[1..], "KUBE-2");
        assert!(existing.0.iter().all(|d| d["metadata"].get("namespace").is_none()), "{kind}");
        assert_eq!(existing.pod()["volumes"][0]["secret"]["secretName"], "key");
    }
}

#[test]
fn all_pods_run_at_once_have_names_and_end_with_the_first_failure() {
    for kind in KINDS {
        let manifest = asked(kind, &["--nodes", "3"]);
        let job = manifest.job();
        assert_eq!((&job["completions"], &job["parallelism"]), (&json!(3), &json!(3)), "{kind}");
        assert_eq!((&job["completionMode"], &job["backoffLimit"]), (&json!("Indexed"), &json!(0)), "{kind}");
        let pod = manifest.pod();
        assert_eq!(pod["restartPolicy"], "Never");
        assert_eq!(
            (&pod["enableServiceLinks"], &pod["shareProcessNamespace"]),
            (&json!(false), &json!(true))
        );
    }
    let job = asked("job", &["--nodes", "3", "--restarts", "2"]);
    let service = &job.get("Service")["spec"];
    assert_eq!((&service["clusterIP"], &service["publishNotReadyAddresses"]), (&json!("None"), &json!(true)));
    assert_eq!(service["selector"], json!({ "batch.kubernetes.io/job-name": "resnet" }));
    assert_eq!(job.pod()["subdomain"], job.get("Service")["metadata"]["name"]);
    assert_eq!(job.job()["backoffLimit"], 6, "each failure fails all three pods");
    let set = asked("jobset", &["--nodes", "3", "--restarts", "2"]);
    let spec = &set.get("JobSet")["spec"];
    assert_eq!(
        spec["network"],
        json!({ "enableDNSHostnames": true, "publishNotReadyAddresses": true, "subdomain": "resnet" })
    );
    assert_eq!((&spec["failurePolicy"]["maxRestarts"], &set.job()["backoffLimit"]), (&json!(2), &json!(0)));
    let train = asked("trainjob", &["--nodes", "3"]);
    let (runtime, reference) = (train.get("TrainingRuntime"), &train.get("TrainJob")["spec"]["runtimeRef"]);
    assert_eq!((&reference["kind"], &reference["name"]), (&runtime["kind"], &runtime["metadata"]["name"]));
    assert_eq!(train.get("TrainJob")["spec"]["trainer"]["numNodes"], 3);
}

#[test]
fn the_secret_is_a_file_that_others_cannot_read_and_differs_each_time() {
    let mut seen = BTreeSet::new();
    for kind in KINDS {
        let args = [kind, "--image", "i", "--nodes", "2", "--", "true"];
        let text = printed(&args);
        let manifest = Manifest::read(&text);
        let secret = manifest.get("Secret")["stringData"]["secret"].as_str().unwrap().to_string();
        assert!(secret.len() == 64 && secret.chars().all(|c| c.is_ascii_hexdigit()), "32 bytes");
        assert_eq!(text.matches(&secret).count(), 1, "KUBE-2: it stands in the Secret alone");
        let comment = text.lines().nth(1).unwrap();
        assert!(comment.starts_with("# This is a secret") && comment.contains("Do not commit it"), "{text}");
        assert!(seen.insert(secret));
        let (pod, container) = (manifest.pod(), manifest.container());
        let volume = &pod["volumes"][0];
        assert_eq!(volume["secret"]["secretName"], manifest.get("Secret")["metadata"]["name"]);
        assert_eq!(
            (&volume["secret"]["defaultMode"], &pod["securityContext"]["fsGroup"]),
            (&json!(0o400), &json!(1000))
        );
        let mount = &container["volumeMounts"][0];
        assert_eq!((&mount["name"], &mount["readOnly"]), (&volume["name"], &json!(true)));
        let file = format!("{}/secret", mount["mountPath"].as_str().unwrap());
        assert_eq!(env(&container, "PHALANX_SECRET_FILE"), json!(file));
    }
    assert_eq!(asked("job", &["--nodes", "1", "--fs-group", "none"]).pod().get("securityContext"), None);
}

#[test]
fn memory_is_shared_in_memory_and_resources_are_requested() {
    for kind in KINDS {
        let plain = asked(kind, &["--nodes", "2", "--slots", "4"]);
        assert_eq!(plain.pod()["volumes"][1]["emptyDir"], json!({ "medium": "Memory" }));
        assert_eq!(plain.container()["volumeMounts"][1]["mountPath"], "/dev/shm");
        assert_eq!(plain.container()["resources"], json!({ "requests": { "cpu": "4" } }));
        let flags = ["--nodes", "2", "--cpu", "2500m", "--memory", "8Gi", "--gpus", "2", "--shm", "1Gi"];
        let full = asked(kind, &flags);
        assert_eq!(full.pod()["volumes"][1]["emptyDir"]["sizeLimit"], "1Gi");
        let resources = &full.container()["resources"];
        assert_eq!(resources["requests"], json!({ "cpu": "2500m", "memory": "8Gi" }));
        assert_eq!(resources["limits"], json!({ "memory": "8Gi", "nvidia.com/gpu": "2" }));
    }
}

#[test]
fn one_rank_in_a_pod_runs_the_command_itself_and_several_run_a_launcher() {
    for (kind, meet) in [
        ("job", "resnet-0.resnet"),
        ("jobset", "resnet-node-0-0.resnet"),
        ("trainjob", "resnet-node-0-0.resnet"),
    ] {
        let one = asked(kind, &["--nodes", "3"]);
        assert_eq!(one.command(), ["./train", "--lr", "1"]);
        assert_eq!(env(&one.container(), "PHALANX_SIZE"), "3");
        let several = asked(kind, &["--nodes", "3", "--slots", "4"]);
        let words = format!(
            "phalanx run --nnodes 3 --node-rank $(JOB_COMPLETION_INDEX) --rdzv {meet}:29400 --start-timeout 600 -np 4 -- ./train --lr 1"
        );
        assert_eq!(several.command().join(" "), words);
        assert_eq!(env(&several.container(), "PHALANX_SIZE"), Value::Null, "each launcher tells its ranks");
        assert_eq!(
            asked(kind, &["--nodes", "1", "--slots", "4"]).command().join(" "),
            "phalanx run -np 4 -- ./train --lr 1"
        );
    }
    let script = |slots| {
        Manifest::of(&["job", "--image", "i", "--nodes", "1", "--slots", slots, "--", "train.py"]).command()
    };
    assert_eq!(script("1"), ["python3", "train.py"]);
    assert_eq!(script("2"), ["phalanx", "run", "-np", "2", "--", "train.py"], "the launcher finds Python");
}

fn env(container: &Value, name: &str) -> Value {
    let all = container["env"].as_array().expect("a list");
    all.iter().find(|e| e["name"] == name).map_or(Value::Null, |e| e["value"].clone())
}

#[test]
fn the_manifest_on_the_page_is_what_its_command_prints() {
    let page = include_str!("../../../../../docs/launching-kubernetes.md");
    let (_, rest) =
        page.split_once("\n## A manifest to copy\n\n`phalanx kube ").expect("a command on the page");
    let (command, rest) = rest.split_once("`\n\n```yaml\n").expect("a manifest behind it");
    let (manifest, _) = rest.split_once("```").expect("its end");
    assert_eq!(printed(&command.split(' ').collect::<Vec<_>>()), manifest);
}
