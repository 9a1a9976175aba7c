//! The golden table of roles, and what is refused.

use super::*;

fn hosts(ps: u32, workers: u32, master: bool) -> TaskHosts {
    let named = |what: &str, n| (0..n).map(|i| format!("{what}{i}:2222")).collect();
    TaskHosts {
        ps: named("p", ps),
        workers: named("w", workers),
        master: master.then(|| "m:2222".to_string()),
    }
}

fn spec(task: TaskType, index: u32, hosts: TaskHosts) -> TaskSpec {
    TaskSpec::new(task, index, hosts).expect("a task of the cluster")
}

fn from(pairs: &[(&str, &str)]) -> Result<Option<TaskSpec>, String> {
    let var = |name: &str| pairs.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string());
    TaskSpec::from_vars(&var).map_err(|e| e.to_string())
}

/// Workers, shard, whether it is the master, whether the evaluator.
fn golden(spec: &TaskSpec) -> (u32, u32, bool, bool) {
    (spec.n_workers(), spec.shard_index(), spec.is_master(), spec.is_evaluator())
}

/// TASK-1, TASK-2.
#[test]
fn the_golden_table_of_roles() {
    use TaskType::{Master, Ps, Worker};
    for n_ps in [0, 1, 2] {
        let worker = |i| spec(Worker, i, hosts(n_ps, 3, false));
        let all: Vec<_> = (0..3).map(|i| golden(&worker(i))).collect();
        assert_eq!(all, [(3, 0, true, false), (3, 1, false, false), (3, 2, false, false)], "{n_ps} ps");
        let fewer: Vec<_> = (0..3).map(|i| worker(i).use_last_worker_as_evaluator().unwrap()).collect();
        assert_eq!(golden(&fewer[0]), (2, 0, true, false));
        assert_eq!(golden(&fewer[1]), (2, 1, false, false));
        assert!(fewer[2].is_evaluator() && !fewer[2].is_master());
        assert_eq!([0, 1, 2].map(|i: usize| fewer[i].rank()), [Some(Rank(0)), Some(Rank(1)), None]);
        assert_eq!(fewer[0].n_ranks(), 2 + n_ps);

        let master = spec(Master, 0, hosts(n_ps, 3, true));
        assert_eq!((golden(&master), master.is_worker()), ((4, 0, true, false), false));
        for i in 0..3 {
            let worker = spec(Worker, i, hosts(n_ps, 3, true));
            assert_eq!((golden(&worker), worker.rank()), ((4, i + 1, false, false), Some(Rank(i + 1))));
        }
        let last = spec(Worker, 2, hosts(n_ps, 3, true)).use_last_worker_as_evaluator().unwrap();
        assert!(last.is_evaluator(), "also with a master");
        let master = spec(Master, 0, hosts(n_ps, 1, true)).use_last_worker_as_evaluator().unwrap();
        assert_eq!(golden(&master), (1, 0, true, false), "a master and one worker, which evaluates");
        for i in 0..n_ps {
            let ps = spec(Ps, i, hosts(n_ps, 3, true));
            assert_eq!((ps.rank(), ps.role(), ps.is_ps()), (Some(Rank(4 + i)), TaskRole::Server, true));
            assert!(!ps.is_master() && !ps.is_worker() && !ps.is_evaluator());
        }
    }
}

#[test]
fn tf_config_is_understood_with_its_old_and_new_words() {
    let lone = from(&[("TF_CONFIG", "{}")]).unwrap().expect("a task");
    assert_eq!(
        (golden(&lone), lone.task_type(), lone.target()),
        ((1, 0, true, false), TaskType::Master, None)
    );
    let text = r#"{"cluster": {"chief": ["c: 1"], "worker": "a:1,b:2", "ps": ["p:3"]}, "task": {"type": "worker", "index": "1", "trial": 7}}"#;
    let worker = from(&[("TF_CONFIG", text)]).unwrap().expect("a task");
    assert_eq!(
        (golden(&worker), worker.trial(), worker.master()),
        ((3, 2, false, false), Some("7"), Some("c:1"))
    );
    assert_eq!(
        (worker.n_ps(), worker.ps_hosts(), worker.target()),
        (1, ["p:3".to_string()].as_slice(), Some("c:1"))
    );
    let chief = text.replace(r#""worker", "index": "1""#, r#""chief", "index": 0"#);
    assert!(from(&[("TF_CONFIG", &chief)]).unwrap().expect("a task").is_master());
    let evaluator = text.replace(r#""worker", "index": "1""#, r#""evaluator", "index": 0"#);
    let evaluator = from(&[("TF_CONFIG", &evaluator)]).unwrap().expect("a task");
    assert_eq!((evaluator.is_evaluator(), evaluator.rank(), evaluator.n_workers()), (true, None, 3));
    // No parameter server: workers that reduce among themselves.
    let text = r#"{"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}"#;
    let worker = from(&[("TF_CONFIG", text)]).unwrap().expect("a task");
    assert_eq!(golden(&worker), (2, 1, false, false), "TASK-1");
}

#[test]
fn the_variables_of_job_name_are_understood() {
    let job =
        [("JOB_NAME", "worker"), ("TASK_INDEX", "1"), ("PS_HOSTS", "p:1"), ("WORKER_HOSTS", "a:1, b:2")];
    let worker = from(&job).unwrap().expect("a task");
    assert_eq!((golden(&worker), worker.source(), worker.n_ps()), ((2, 1, false, false), "JOB_NAME", 1));
    let with_master = [job.as_slice(), &[("MASTER_HOST", "m:1")]].concat();
    assert_eq!(golden(&from(&with_master).unwrap().expect("a task")), (3, 2, false, false));
    assert_eq!(from(&[("JOB_NAME", "nightly build")]), Ok(None), "Jenkins names its jobs so");
    assert_eq!(from(&[]), Ok(None));
}

#[test]
fn launchers_describe_tasks_by_numbers() {
    let ours = [("PHALANX_RANK", "2"), ("PHALANX_SIZE", "4"), ("PHALANX_SERVERS", "1")];
    let worker = from(&ours).unwrap().expect("a task");
    assert_eq!((golden(&worker), worker.n_ps(), worker.target()), ((3, 2, false, false), 1, None));
    let ps =
        [("PHALANX_RANK", "3"), ("PHALANX_SIZE", "4"), ("PHALANX_SERVERS", "1"), ("PHALANX_ROLE", "server")];
    let ps = from(&ps).unwrap().expect("a task");
    assert_eq!((ps.is_ps(), ps.index(), ps.rank()), (true, 0, Some(Rank(3))));
    let evaluator = [("PHALANX_SIZE", "4"), ("PHALANX_SERVERS", "1"), ("PHALANX_ROLE", "evaluator")];
    let evaluator = from(&evaluator).unwrap().expect("a task");
    assert_eq!((evaluator.is_evaluator(), evaluator.n_workers(), evaluator.n_ps()), (true, 3, 1));
    for (rank, size, more) in [
        ("RANK", "WORLD_SIZE", Some(("LOCAL_RANK", "0"))),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", None),
    ] {
        let vars: Vec<_> = [(rank, "0"), (size, "2")].into_iter().chain(more).collect();
        assert_eq!(golden(&from(&vars).unwrap().expect("a task")), (2, 0, true, false), "TASK-1: {rank}");
        let both: Vec<_> = vars.iter().copied().chain([("TF_CONFIG", "{}")]).collect();
        assert_eq!(
            golden(&from(&both).unwrap().expect("a task")),
            (2, 0, true, false),
            "TF_CONFIG names no others"
        );
    }
}

#[test]
fn the_last_worker_of_a_launcher_evaluates_and_the_others_say_so() {
    let var = |name: &str| {
        let pairs = [
            ("PHALANX_RANK", "1"),
            ("PHALANX_SIZE", "3"),
            ("PHALANX_LAUNCHER", "1"),
            ("PHALANX_RENDEZVOUS", "h:1"),
        ];
        pairs.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string())
    };
    let spec = TaskSpec::from_vars(&var).unwrap().expect("a task").use_last_worker_as_evaluator().unwrap();
    let identity = spec.identity(&var, 7).unwrap();
    assert_eq!((identity.rank, identity.n_ranks, identity.n_aside), (Rank(1), 2, 1));
    assert_eq!(identity.meeting, Meeting::Hub(vec!["h:1".into()]));
    let with_server = |name: &str| match name {
        "PHALANX_SERVERS" => Some("1".into()),
        "PHALANX_SIZE" => Some("4".into()),
        _ => var(name),
    };
    let spec =
        TaskSpec::from_vars(&with_server).unwrap().expect("a task").use_last_worker_as_evaluator().unwrap();
    assert!(spec.identity(&with_server, 7).unwrap_err().to_string().contains("--evaluator instead"));
}

/// TASK-3.
#[test]
fn what_is_no_task_is_refused_in_one_line_that_names_the_variable() {
    let cluster = r#""cluster": {"worker": ["a:1", "b:2"]}"#;
    let tf = |text: &str| from(&[("TF_CONFIG", text)]).unwrap_err();
    let task = |task: &str| tf(&format!("{{{cluster}, \"task\": {task}}}"));
    let job = |pairs: &[(&str, &str)]| from(pairs).unwrap_err();
    for (error, part) in [
        (tf(""), "TF_CONFIG is set but empty"),
        (tf("{"), "TF_CONFIG is not JSON: "),
        (tf("[]"), "TF_CONFIG: the whole is [], not an object in braces"),
        (tf(r#"{"cluster": 3}"#), "TF_CONFIG: cluster is 3, not an object in braces"),
        (
            tf(r#"{"cluster": {"worker": {"1": "a:1"}}}"#),
            "TF_CONFIG: cluster.worker is {\"1\":\"a:1\"}, not a list of host:port",
        ),
        (
            tf(r#"{"cluster": {"master": ["a:1"], "chief": ["b:1"]}}"#),
            "TF_CONFIG: the cluster has a master and a chief",
        ),
        (
            tf(r#"{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}"#),
            "TF_CONFIG: a cluster with parameter servers needs a worker",
        ),
        (task(r#"{"type": "worker"}"#), "TF_CONFIG has a task without an index"),
        (
            task(r#"{"type": "boss", "index": 0}"#),
            "TF_CONFIG: \"boss\" is not a type of task; write master, chief, worker, ps or evaluator",
        ),
        (task(r#"{"type": "worker", "index": -1}"#), "TF_CONFIG: \"-1\" is not the number of a task"),
        (
            task(r#"{"type": "worker", "index": 2}"#),
            "TF_CONFIG: there is no worker 2, because the cluster names 2 worker hosts, numbers 0 to 1",
        ),
        (
            task(r#"{"type": "ps", "index": 0}"#),
            "TF_CONFIG: there is no ps 0, because the cluster names no ps host",
        ),
        (
            tf(&format!("{{{cluster}}}")),
            "TF_CONFIG: there is no master 0, because the cluster names no master host",
        ),
        (
            job(&[("JOB_NAME", "worker"), ("WORKER_HOSTS", "a:1")]),
            "TASK_INDEX is not set, but WORKER_HOSTS is",
        ),
        (job(&[("JOB_NAME", "boss"), ("TASK_INDEX", "0")]), "JOB_NAME: \"boss\" is not a type of task"),
        (
            job(&[("JOB_NAME", "worker"), ("TASK_INDEX", "x")]),
            "TASK_INDEX: \"x\" is not the number of a task",
        ),
        (
            job(&[("JOB_NAME", "worker"), ("TASK_INDEX", "1"), ("WORKER_HOSTS", "a:1")]),
            "TASK_INDEX: there is no worker 1",
        ),
        (
            job(&[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("PHALANX_ROLE", "server")]),
            "PHALANX_ROLE=server, but PHALANX_SERVERS is not set",
        ),
    ] {
        assert!(error.starts_with(part) && !error.contains('\n'), "{error}\n  instead of {part}");
    }
    for workers in [hosts(1, 1, false), hosts(0, 0, false), hosts(0, 0, true)] {
        let task = if workers.master.is_some() { TaskType::Master } else { TaskType::Worker };
        let error = spec(task, 0, workers).use_last_worker_as_evaluator().unwrap_err().to_string();
        assert!(error.starts_with("use_last_worker_as_evaluator: 1 worker is too few"), "{error}");
    }
}

#[test]
fn variables_go_round_the_servers_in_the_order_of_their_creation() {
    let mut placement = spec(TaskType::Worker, 0, hosts(2, 1, false)).device_fn();
    let placed: Vec<_> = ["w1", "b1", "w2", "b1"].map(|name| placement.place(name)).into();
    assert_eq!(placed, [Some(0), Some(1), Some(0), Some(1)], "a name stays where it is");
    assert_eq!(placement.to_string(), "w1 -> /job:ps/task:0\nb1 -> /job:ps/task:1\nw2 -> /job:ps/task:0");
    let mut alone = spec(TaskType::Master, 0, TaskHosts::default()).device_fn();
    assert_eq!((alone.place("w"), alone.to_string().as_str()), (None, "w -> worker"));
}
