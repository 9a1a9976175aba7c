//! Environments of launchers.

use super::*;

fn with(pairs: &[(&str, &str)]) -> Result<Identity, DiscoverError> {
    discover(&|name| pairs.iter().find(|(k, _)| *k == name).map(|(_, v)| v.to_string()), 7)
}

#[test]
fn nothing_is_a_world_of_one() {
    let alone = with(&[]).unwrap();
    assert_eq!((alone.rank, alone.n_ranks, alone.meeting), (Rank(0), 1, Meeting::Alone));
}

#[test]
fn our_launcher_tells_where_its_hub_is() {
    let env = [
        ("PHALANX_RANK", "1"),
        ("PHALANX_SIZE", "2"),
        ("PHALANX_LAUNCHER", "1"),
        ("PHALANX_RENDEZVOUS", "10.0.0.1:5, [::1]:6"),
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "9"),
        ("SLURM_STEP_ID", "0"),
    ];
    let identity = with(&env).unwrap();
    assert_eq!((identity.source, identity.rank), ("phalanx", Rank(1)), "DISC-1");
    assert_eq!(identity.meeting, Meeting::Hub(vec!["10.0.0.1:5".into(), "[::1]:6".into()]));
}

#[test]
fn every_known_launcher_is_understood() {
    let open_mpi = with(&[
        ("OMPI_COMM_WORLD_RANK", "3"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ("PMIX_NAMESPACE", "77"),
    ]);
    let place = Meeting::RankZero { hosts: Vec::new(), job: "Open MPI 77".into() };
    assert_eq!(open_mpi, Ok(Identity { source: "Open MPI", ..Identity::worker(Rank(3), 4, place) }));
    let hydra = with(&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")]).unwrap();
    assert_eq!(hydra.meeting, Meeting::RankZero { hosts: Vec::new(), job: "PMI parent 7".into() });
    let torchrun = with(&[
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "0"),
        ("LOCAL_WORLD_SIZE", "1"),
        ("MASTER_ADDR", "a"),
        ("MASTER_PORT", "29500"),
    ]);
    let place = Meeting::RankZero { hosts: vec!["a".into()], job: "torchrun a 29500".into() };
    assert_eq!(torchrun.unwrap().meeting, place);
}

#[test]
fn ranks_started_by_hand_with_horovods_names_share_a_job_whatever_their_parents() {
    let env = [
        ("HOROVOD_RANK", "1"),
        ("HOROVOD_SIZE", "2"),
        ("HOROVOD_LOCAL_SIZE", "2"),
        ("HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.9"),
        ("HOROVOD_GLOO_RENDEZVOUS_PORT", "7000"),
    ];
    let job = "horovodrun 10.0.0.9 7000".to_string();
    assert_eq!(
        with(&env).unwrap().meeting,
        Meeting::RankZero { hosts: Vec::new(), job: job.clone() },
        "one host meets on loopback"
    );
    let spread = [env[0], env[1], env[3], env[4]];
    assert_eq!(
        with(&spread).unwrap().meeting,
        Meeting::RankZero { hosts: vec!["10.0.0.9".into()], job },
        "several meet where the address says"
    );
}

#[test]
fn slurm_counts_only_inside_a_step() {
    let batch = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_STEP_ID", "batch")];
    assert_eq!(with(&batch).unwrap().source, "nobody", "DISC-3");
    let interactive = [batch[0], batch[1], ("SLURM_STEP_ID", "4294967290"), ("SLURM_STEP_NUM_TASKS", "1")];
    assert_eq!(with(&interactive).unwrap().source, "nobody", "DISC-3");
    let step = [
        ("SLURM_PROCID", "0"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_NODELIST", "n[05-07,9],m"),
    ];
    let place = Meeting::RankZero { hosts: vec!["n05".into()], job: "Slurm 12 0".into() };
    assert_eq!(with(&step).unwrap().meeting, place);
    let racks = [("SLURM_STEP_NODELIST", "r[1-2]n[08-10]")];
    let at = |list: &[(&str, &str)]| with(&[list, &step].concat()).map(|found| found.meeting);
    let place = Meeting::RankZero { hosts: vec!["r1n08".into()], job: "Slurm 12 0".into() };
    assert_eq!(at(&racks), Ok(place), "the first of every bracket");
    let open = at(&[("SLURM_STEP_NODELIST", "n[1")]).unwrap_err().to_string();
    let why = "SLURM_STEP_NODELIST=\"n[1\" is not a list of hosts, at character 2: a bracket is not closed";
    assert!(open.starts_with(why), "{open}");
}

#[test]
fn half_set_and_contradicting_sources_show_both_sides() {
    let half = with(&[("RANK", "1"), ("WORLD_SIZE", "2")]).unwrap_err().to_string();
    assert!(half.contains("torchrun") && half.contains("LOCAL_RANK"), "DISC-2: {half}");
    let both = with(&[
        ("PHALANX_RANK", "0"),
        ("PHALANX_SIZE", "2"),
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "4"),
    ]);
    let both = both.unwrap_err().to_string();
    assert!(both.contains("phalanx says rank 0 of 2, Open MPI says rank 1 of 4"), "DISC-2: {both}");
}

#[test]
fn roles_are_told_and_an_evaluator_is_alone() {
    let ours = [
        ("PHALANX_RANK", "1"),
        ("PHALANX_SIZE", "2"),
        ("PHALANX_LAUNCHER", "1"),
        ("PHALANX_RENDEZVOUS", "h:1"),
    ];
    let role = |more: &[(&str, &str)]| with(&[ours.as_slice(), more].concat()).map_err(|e| e.to_string());
    assert_eq!(role(&[]).unwrap().role, TaskRole::Worker);
    assert_eq!(role(&[("PHALANX_ROLE", "server"), ("PHALANX_SERVERS", "1")]).unwrap().role, TaskRole::Server);
    let evaluator = role(&[("PHALANX_ROLE", "evaluator")]).unwrap();
    assert_eq!(
        (evaluator.role, evaluator.n_ranks, evaluator.meeting),
        (TaskRole::Evaluator, 1, Meeting::Alone),
        "DISC-4"
    );
    let lone = with(&[("PHALANX_ROLE", "evaluator"), ("PHALANX_SIZE", "4")]).unwrap();
    assert_eq!((lone.role, lone.n_ranks), (TaskRole::Evaluator, 1), "DISC-4");
    assert_eq!(
        role(&[("PHALANX_ROLE", "ps")]),
        Err("PHALANX_ROLE=\"ps\" is not a role: write worker, server or evaluator".into())
    );
    assert!(
        role(&[("PHALANX_SERVERS", "1")])
            .unwrap_err()
            .contains("the last 1 of 2 ranks are servers by PHALANX_SERVERS")
    );
    assert!(role(&[("PHALANX_SERVERS", "x")]).unwrap_err().contains("PHALANX_SERVERS"));
    let first = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PHALANX_ROLE", "server")];
    assert_eq!(with(&first), Err(DiscoverError::ServerFirst), "DISC-4");
}

#[test]
fn a_cluster_meets_at_the_address_of_its_first_rank() {
    let config =
        |task: &str| format!(r#"{{"cluster":{{"worker":["a:1","b:2"],"ps":["c:3"]}},"task":{task}}}"#);
    let place = Meeting::RankZero { hosts: vec!["a:1".into()], job: "cluster  a:1,b:2 c:3".into() };
    let ps = config(r#"{"type":"ps","index":0}"#);
    let found = with(&[("TF_CONFIG", &ps)]).unwrap();
    assert_eq!(
        (found.rank, found.n_ranks, found.role, &found.meeting),
        (Rank(2), 3, TaskRole::Server, &place)
    );
    let outer = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "9"), ("SLURM_STEP_ID", "0"), ("TF_CONFIG", &ps)];
    assert_eq!(with(&outer).unwrap().source, "TF_CONFIG", "DISC-1");
    let ours = [
        ("PHALANX_RANK", "1"),
        ("PHALANX_SIZE", "3"),
        ("PHALANX_LAUNCHER", "1"),
        ("PHALANX_RENDEZVOUS", "h:1"),
        ("TF_CONFIG", &ps),
    ];
    let both = with(&ours).unwrap_err().to_string();
    assert!(both.contains("TF_CONFIG says rank 2 of 3, phalanx says rank 1 of 3"), "DISC-2: {both}");
    let evaluator = config(r#"{"type":"evaluator","index":0}"#);
    let alone = with(&[("TF_CONFIG", &evaluator)]).unwrap();
    assert_eq!(
        (alone.role, alone.n_ranks, alone.meeting),
        (TaskRole::Evaluator, 1, Meeting::Alone),
        "DISC-4"
    );
    assert!(with(&[("TF_CONFIG", "")]).unwrap_err().to_string().starts_with("TF_CONFIG is set but empty"));
    assert_eq!(with(&[("TF_CONFIG", "{}")]).unwrap().source, "nobody", "it says nothing of others");
}

#[test]
fn nonsense_numbers_are_named() {
    let error = with(&[("PMI_RANK", "x"), ("PMI_SIZE", "2")]).unwrap_err();
    assert_eq!(error.to_string(), "PMI_RANK=\"x\" is not a number");
    let error = with(&[("PMI_RANK", "2"), ("PMI_SIZE", "2")]).unwrap_err();
    assert!(error.to_string().contains("rank 2 of 2"));
}

#[test]
fn ranks_meet_where_the_first_of_several_hints_says() {
    let hydra = [("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MPI_LOCALNRANKS", "2"), ("PMI_FD", "8")];
    let meeting = |more: &[(&str, &str)]| with(&[more, &hydra].concat()).unwrap().meeting;
    assert_eq!(meeting(&[]), Meeting::Board(BoardAddress::Pmi1 { fd: 8 }), "DISC-5");
    assert_eq!(
        meeting(&[("PHALANX_RENDEZVOUS", "a:1, b:2")]),
        Meeting::RankZero { hosts: vec!["a:1".into(), "b:2".into()], job: String::new() },
        "DISC-5"
    );
    let one_host = meeting(&[("MPI_LOCALNRANKS", "4")]);
    assert_eq!(one_host, Meeting::RankZero { hosts: vec![], job: "PMI parent 7".into() }, "DISC-5");
    assert_eq!(
        with(&hydra[..1].iter().chain(&hydra[1..3]).copied().collect::<Vec<_>>()).unwrap_err(),
        DiscoverError::NowhereToMeet { source_name: "PMI", n_ranks: 4 }
    );
    let open_mpi =
        [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")];
    let pmix = [("PMIX_NAMESPACE", "7"), ("PMIX_RANK", "3"), ("PMI_FD", "8")];
    assert_eq!(
        with(&[&open_mpi[..], &pmix].concat()).unwrap().meeting,
        Meeting::Board(BoardAddress::Pmix),
        "DISC-5"
    );
    assert_eq!(
        with(&[&hydra[..], &pmix].concat()).unwrap().meeting,
        Meeting::Board(BoardAddress::Pmix),
        "DISC-5"
    );
    let other = [("PMIX_NAMESPACE", "7"), ("PMIX_RANK", "0")];
    assert!(with(&[&open_mpi[..], &other].concat()).is_err(), "a PMIx of another launcher is not asked");
    let wrong =
        with(&[&hydra[..], &[("PHALANX_RENDEZVOUS", "http://a:1")]].concat()).unwrap_err().to_string();
    assert!(wrong.starts_with("PHALANX_RENDEZVOUS=\"http://a:1\" is not a meeting point"), "{wrong}");
}

#[test]
fn srun_with_pmi_keeps_its_node_list() {
    let step = [
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_NODELIST", "n[05-06]"),
        ("SLURM_STEP_NUM_NODES", "2"),
    ];
    let pmi2 = [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("PMI_FD", "11"), ("PMI_JOBID", "12.0")];
    let meeting = |more: &[(&str, &str)]| with(&[more, &step].concat()).unwrap().meeting;
    let nodes = |job: &str| Meeting::RankZero { hosts: vec!["n05".into()], job: job.into() };
    assert_eq!(meeting(&[]), nodes("Slurm 12 0"));
    let board = BoardAddress::Pmi2 { fd: 11, job: "12.0".into() };
    assert_eq!(meeting(&pmi2), Meeting::Board(board.clone()), "DISC-6");
    assert_eq!(meeting(&pmi2[..3]), Meeting::Board(board), "DISC-6: the step's own name");
    for secret in ["PHALANX_SECRET", "PHALANX_SECRET_FILE"] {
        assert_eq!(meeting(&[&pmi2[..], &[(secret, "x")]].concat()), nodes("PMI 12.0"), "DISC-6");
    }
    assert_eq!(meeting(&pmi2[..2]), nodes("PMI parent 7"), "DISC-6: without a socket");
    let one_node = meeting(&[&[("SLURM_STEP_NUM_NODES", "1")], &pmi2[..]].concat());
    assert_eq!(one_node, Meeting::RankZero { hosts: vec![], job: "PMI 12.0".into() }, "DISC-5");
    // mpiexec of MPICH inside a step has a socket and numbers of its own.
    let inner = [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("PMI_FD", "8"), ("MPI_LOCALNRANKS", "2")];
    assert_eq!(meeting(&inner), Meeting::Board(BoardAddress::Pmi1 { fd: 8 }));
}

#[test]
fn a_meeting_point_is_addresses_etcd_or_a_directory() {
    let meeting = |value: &str| {
        with(&[("PHALANX_RANK", "0"), ("PHALANX_SIZE", "2"), ("PHALANX_RENDEZVOUS", value)])
            .map(|i| i.meeting)
    };
    let etcd = |endpoints: &[&str], job: &str| {
        let endpoints = endpoints.iter().map(ToString::to_string).collect();
        Ok(Meeting::Board(BoardAddress::Etcd { endpoints, job: job.into() }))
    };
    assert_eq!(meeting("etcd://h/job"), etcd(&["h:2379"], "job"));
    assert_eq!(meeting("etcd://a:1, [::1]/my.job-2"), etcd(&["a:1", "[::1]:2379"], "my.job-2"));
    assert_eq!(meeting("file:/mnt/x"), Ok(Meeting::Board(BoardAddress::File { dir: "/mnt/x".into() })));
    for wrong in [
        "etcd://h",
        "etcd://h/",
        "etcd:///job",
        "etcd://h/a b",
        "file:x",
        "file:",
        "http://h:1/x",
        "a:1,,b:2",
        ",",
    ] {
        let error = meeting(wrong).unwrap_err().to_string();
        assert!(
            error.contains("write host:port[,host:port], etcd://host:port/job or file:/directory"),
            "{wrong}: {error}"
        );
    }
}

#[test]
fn pods_of_an_indexed_job_meet_in_pod_0() {
    let pod = [("JOB_COMPLETION_INDEX", "2"), ("PHALANX_SIZE", "4"), ("HOSTNAME", "train-2")];
    assert_eq!(with(&pod).unwrap().meeting, Meeting::Pod { pod: "train-2".into(), index: 2 }, "DISC-5");
    let other = [pod[0], pod[1], ("HOSTNAME", "laptop")];
    assert_eq!(with(&other), Err(DiscoverError::NowhereToMeet { source_name: "Kubernetes", n_ranks: 4 }));
}

#[test]
fn an_empty_number_is_not_a_world_of_one() {
    for (vars, name) in [
        (&[("PHALANX_RANK", ""), ("PHALANX_SIZE", "")][..], "PHALANX_RANK"),
        (&[("PHALANX_RANK", "0"), ("PHALANX_SIZE", " ")], "PHALANX_SIZE"),
        (&[("PHALANX_SIZE", "")], "PHALANX_SIZE"),
        (&[("RANK", ""), ("WORLD_SIZE", "")], "RANK"),
        (&[("JOB_COMPLETION_INDEX", "")], "JOB_COMPLETION_INDEX"),
    ] {
        let error = with(vars).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name} is set and empty")), "DISC-2: {vars:?}: {error}");
    }
    let whole = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2"), ("RANK", "")];
    assert_eq!(with(&whole).unwrap().source, "PMI", "what another launcher left empty is no matter");
}

#[test]
fn a_meeting_point_that_is_none_is_told_why() {
    let at = |place: &str| {
        with(&[("PHALANX_RANK", "0"), ("PHALANX_SIZE", "2"), ("PHALANX_RENDEZVOUS", place)])
            .map(|found| found.meeting)
            .map_err(|e| e.to_string())
    };
    for dir in ["file:/x/y", "file:///x/y", "file://///x//./y/"] {
        let there = Meeting::Board(BoardAddress::File { dir: "/x/y".into() });
        assert_eq!(at(dir), Ok(there), "one spelling");
    }
    for (place, why) in [
        ("n0:99999", "\"99999\" is no port: ports are 1 to 65535"),
        ("n0:0", "is no port"),
        ("n0:http", "\"http\" is no port"),
        ("a b:1", "' ' is in no host's name"),
        (":29500", "a host is missing"),
        ("n0:1,,n1:1", "a host is missing"),
        ("file://n0/x", "as in file:///directory"),
        ("file:x", "named from the root"),
        ("https://n0:2379/j", "without TLS"),
        ("etcds://n0:2379/j", "without TLS"),
        ("etcd://me:word@n0/j", "no user and no password"),
        ("etcd://n0:99999/j", "is no port"),
        ("etcd://n0", "the job's name"),
        ("gopher://n0", "\"gopher\" is no kind of meeting point"),
    ] {
        let error = at(place).unwrap_err();
        assert!(error.contains(why) && error.contains("write host:port[,host:port]"), "{place}: {error}");
        assert!(!error.contains("word@"), "a password is not shown: {error}");
    }
    for good in ["n0", "n0:1", "::1", "[::1]:5", "fe80::1%eth0", "10.0.0.1:5,n0.lan:6"] {
        assert!(at(good).is_ok(), "{good}: {:?}", at(good));
    }
}
