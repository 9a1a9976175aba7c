use super::{
    super::{
        negotiate::message::Agreed,
        spec::{Form, Kind, Name, Spec},
    },
    Record, What,
    file::{Events, TraceFile},
    path_of_rank,
    queue::{Queue, Taken},
    story::Story,
};
use phalanx_core::{DType, Rank};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

/// A folder that is gone after the test.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("phalanx-{test}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn agreed(name: &str, kind: Kind) -> Arc<Agreed> {
    let form = Form { dtype: DType::F32, shape: vec![2, 3] };
    let spec = Spec::new(kind, vec![form]);
    Arc::new(Agreed { name: name.into(), spec, rows: Vec::new(), absent: Vec::new() })
}

fn submitted(name: &str) -> What {
    What::Submitted { set: 0, name: name.into(), kind: Kind::Allreduce }
}

/// What one operation leaves, from its submission to its end.
fn whole(name: &str, number: u64) -> [What; 4] {
    let agreed = agreed(name, Kind::Allreduce);
    [
        submitted(name),
        What::Agreed { set: 0, agreed: agreed.clone() },
        What::Moving { set: 0, agreed: agreed.clone() },
        What::Moved { set: 0, agreed, plan: "ring", number },
    ]
}

/// A microsecond and a half after each other.
fn taken(all: impl IntoIterator<Item = What>) -> Taken {
    let records = all.into_iter().zip(1..).map(|(what, i)| Record { at_ns: i * 1500, what }).collect();
    Taken { records, ..Taken::default() }
}

fn parsed(events: &Events) -> Vec<Value> {
    events.iter().map(|e| serde_json::from_str(e).unwrap_or_else(|error| panic!("{e}: {error}"))).collect()
}

/// Phase, name and time of every event that is no metadata.
fn short(events: &Events) -> Vec<String> {
    let all = parsed(events).into_iter().filter(|e| e["ph"] != "M");
    all.map(|e| format!("{} {} {}", e["ph"].as_str().unwrap(), e["name"].as_str().unwrap(), e["ts"]))
        .collect()
}

#[test]
fn an_operation_is_told_from_its_submission_to_its_end() {
    let mut story = Story::new();
    let events = story.tell(&taken(whole("grad", 7)));
    assert_eq!(
        short(events),
        [
            "B NEGOTIATE_ALLREDUCE 1.5",
            "E NEGOTIATE_ALLREDUCE 3.0",
            "B ALLREDUCE 3.0",
            "B QUEUE 3.0",
            "E QUEUE 4.5",
            "B ring 4.5",
            "E ring 6.0",
            "E ALLREDUCE 6.0",
        ]
    );
    let all = parsed(events);
    assert_eq!(all[0]["args"]["name"], "grad");
    assert_eq!((&all[1]["name"], &all[1]["args"]["sort_index"]), (&"process_sort_index".into(), &1.into()));
    let args = &all.last().unwrap()["args"];
    assert_eq!(
        (&args["dtype"], &args["shape"], &args["operation"]),
        (&"f32".into(), &"[2, 3]".into(), &7.into())
    );
    let again = story.tell(&taken(whole("grad", 8)));
    assert_eq!(parsed(again).len(), 8, "a tensor is introduced once");
    assert!(parsed(again).iter().all(|e| e["pid"] == 1));
}

#[test]
fn sets_are_told_apart_and_names_may_hold_anything() {
    let mut story = Story::new();
    let name: Name = "a\"b\\c\n\u{1}é".into();
    let what = |set| What::Submitted { set, name: name.clone(), kind: Kind::Barrier };
    let all = parsed(story.tell(&taken([what(0), what(3)])));
    let names: Vec<&Value> =
        all.iter().filter(|e| e["name"] == "process_name").map(|e| &e["args"]["name"]).collect();
    assert_eq!(names, [&*name, &format!("{name} (process set 3)")]);
    let refused = story.tell(&taken([What::Refused { set: 3, name: name.clone() }]));
    assert_eq!(short(refused), ["E NEGOTIATE_BARRIER 1.5"]);
}

#[test]
fn what_begins_ends_once_whichever_records_are_missing() {
    for missing in 0..16u32 {
        let mut story = Story::new();
        let rounds = (0..3).flat_map(|round| {
            // The first and the last round are complete.
            let gap = if round == 1 { missing } else { 0 };
            whole("x", round).into_iter().enumerate().filter(move |(i, _)| gap & 1 << i == 0)
        });
        let events = story.tell(&taken(rounds.map(|(_, what)| what)));
        let mut open: Vec<String> = Vec::new();
        for event in parsed(events).iter().filter(|e| e["ph"] != "M") {
            let name = event["name"].as_str().unwrap().to_string();
            if event["ph"] == "B" {
                open.push(name);
            } else {
                assert_eq!(open.pop(), Some(name), "without {missing:b}");
            }
        }
        assert!(open.is_empty(), "without {missing:b}: {open:?}");
        let ends = parsed(events).iter().filter(|e| e["args"]["operation"].is_u64()).count();
        assert!(ends >= 2, "without {missing:b}");
    }
}

#[test]
fn names_that_never_come_again_are_forgotten() {
    let mut story = Story::with_most_tracks(10);
    let waiting = story.tell(&taken([submitted("waits")]));
    assert_eq!(parsed(waiting)[0]["pid"], 1);
    for i in 0..1000 {
        let all = parsed(story.tell(&taken(whole(&format!("x{i}"), i))));
        assert_eq!(all[0]["pid"], i + 2, "numbers are not used again");
    }
    let end = story.tell(&taken([What::Refused { set: 0, name: "waits".into() }]));
    assert_eq!(parsed(end)[0]["pid"], 1, "what is open is kept");
}

/// TIME-2.
#[test]
fn what_does_not_fit_is_counted_and_told() {
    let queue = Queue::with_limit(4);
    assert!(!queue.is_open());
    queue.push([What::Cycle]);
    queue.open(Instant::now(), true);
    assert!(queue.is_open() && queue.marks_cycles());
    queue.push((0..7).map(|_| What::Cycle));
    let (mut first, mut second) = (Taken::default(), Taken::default());
    queue.take(&mut first);
    assert_eq!((first.records.len(), first.n_lost, first.is_last), (4, 3, false));
    queue.push([What::Cycle]);
    queue.close();
    queue.push([What::Cycle]);
    queue.take(&mut second);
    assert_eq!((second.records.len(), second.n_lost, second.is_last), (1, 0, true));
    let mut story = Story::new();
    story.tell(&first);
    let all = parsed(story.tell(&Taken { n_lost: 2, at_ns: 1_000_001, ..Taken::default() }));
    assert_eq!(
        (&all[0]["name"], &all[0]["ph"], &all[0]["ts"]),
        (&"DROPPED_EVENTS".into(), &"i".into(), &1000.001.into())
    );
    assert_eq!((&all[0]["args"]["dropped"], &all[0]["args"]["total"]), (&2.into(), &5.into()));
}

/// TIME-1, as a kill between two writes would leave it, while the file grows several times.
#[test]
fn the_file_is_whole_after_every_write() {
    let folder = Folder::new("whole");
    let path = folder.0.join("t.json");
    fs::write(&path, "what was there before, and is longer than what comes first".repeat(100)).unwrap();
    let mut story = Story::new();
    let mut file = TraceFile::create(&path, &story.head(Rank(3), 4)).unwrap();
    let read = || -> Vec<Value> { serde_json::from_slice(&fs::read(&path).unwrap()).unwrap() };
    let head = read();
    assert_eq!((&head[0]["args"]["rank"], &head[0]["args"]["size"]), (&3.into(), &4.into()));
    assert!(head[0]["args"]["start_time_since_epoch_in_micros"].as_u64() > Some(1_600_000_000_000_000));
    let mut n_events = head.len();
    for round in 0..300 {
        // Of all lengths, so that they meet the borders of pages in all ways.
        let name = "n".repeat(round * 7 % 100 + if round % 50 == 49 { 9000 } else { 0 });
        let events = story.tell(&taken(whole(&name, round as u64)));
        n_events += parsed(events).len();
        file.append(events).unwrap();
        assert_eq!(read().len(), n_events, "round {round}");
    }
    let many = taken((0..300).flat_map(|i| whole(&format!("many{i}"), i)));
    let events = story.tell(&many);
    n_events += parsed(events).len();
    file.append(events).unwrap();
    assert_eq!(read().len(), n_events);
    let with_blanks = fs::metadata(&path).unwrap().len();
    assert!(with_blanks > 3 * 65_536, "it grew: {with_blanks}");
    file.finish();
    assert_eq!(read().len(), n_events);
    assert!(fs::read(&path).unwrap().ends_with(b"}}\n]\n"), "no blanks are left at the end");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing lies beside it");
}

/// Whatever a program calls its tensors, an event fits into a page.
#[test]
fn events_are_short() {
    let mut story = Story::new();
    let name = "\u{1}\"é".repeat(5000);
    let forms = vec![Form { dtype: DType::F32, shape: vec![u64::MAX; 500] }; 100];
    let spec = Spec::new(Kind::Allreduce, forms);
    let agreed = Arc::new(Agreed { name: name.as_str().into(), spec, rows: Vec::new(), absent: Vec::new() });
    let moving = What::Moving { set: u32::MAX, agreed: agreed.clone() };
    let moved = What::Moved { set: u32::MAX, agreed, plan: "ring", number: u64::MAX };
    let events = story.tell(&taken([moving, moved]));
    let longest = events.iter().map(str::len).max().unwrap();
    assert!((1000..2000).contains(&longest), "{longest}");
    let shown = &parsed(events)[0]["args"]["name"];
    assert!(shown.as_str().unwrap().contains("... (20000 bytes)"), "{shown}");
}

#[test]
fn files_that_cannot_be_are_refused_with_the_reason() {
    let folder = Folder::new("refused");
    let head = Story::new().head(Rank(0), 1);
    let why = |path: &Path| TraceFile::create(path, &head).unwrap_err().to_string();
    assert_eq!(why(&folder.0), "it exists and is not a regular file");
    assert_eq!(why(Path::new("/dev/null")), "it exists and is not a regular file");
    assert!(why(&folder.0.join("no/t.json")).starts_with("No such file or directory"));
}

#[test]
fn every_rank_has_a_file_of_its_own() {
    for (given, want) in [
        ("t.json", "t.rank3.json"),
        ("/a/b.c/t", "/a/b.c/t.rank3"),
        ("run.1/t.x.json", "run.1/t.x.rank3.json"),
        (".json", ".json.rank3"),
    ] {
        assert_eq!(path_of_rank(Path::new(given), Rank(3)), Path::new(want));
        assert_eq!(
            path_of_rank(Path::new(given), Rank::ZERO),
            Path::new(given),
            "it is found under the name that was given"
        );
    }
}
