//! Parses hosts and slots: `-H a:2,b:2` and host files, without contacting any machine.
//!
//! - HOST-1: a host's name never begins with `-` and has no blanks, so that the remote shell cannot take it for an option.

/// A host and how many ranks it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSlots {
    pub name: String,
    pub slots: u32,
}

/// What is wrong with a list of hosts. `place` says where: the flag, or the file and line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    #[error("{place}: {text:?} has no host name")]
    NoName { place: String, text: String },
    #[error(
        "{place}: {name:?} is not a host name; use letters, digits and . - _ @ : only, and do not begin with -"
    )]
    BadName { place: String, name: String },
    #[error("{place}: {slots:?} is not a number of slots; write e.g. {name}:4 with a number from 1")]
    BadSlots { place: String, name: String, slots: String },
    #[error("{place}: {word:?} is not understood; write `host`, `host:4` or `host slots=4`")]
    BadWord { place: String, word: String },
    #[error("{place} does not name a host; write e.g. node1:4")]
    Empty { place: String },
}

/// Reads `a:2,b:2`. A host without a number has one slot; one named twice has the sum.
#[cfg(test)]
pub fn parse_list(text: &str) -> Result<Vec<HostSlots>, HostError> {
    parse_list_with(text, 1)
}

/// Reads `a:2,b`; a host without a number has the default number of slots.
pub fn parse_list_with(text: &str, each: u32) -> Result<Vec<HostSlots>, HostError> {
    let place = "-H";
    let mut hosts = Vec::new();
    for entry in text.split(',').map(str::trim).filter(|e| !e.is_empty()) {
        merge(&mut hosts, parse_entry(entry, place, each)?);
    }
    if hosts.is_empty() {
        return Err(HostError::Empty { place: place.to_string() });
    }
    Ok(hosts)
}

/// Reads a host file: one host a line, `#` begins a comment; a host without a number has the default number of slots.
pub fn parse_file(text: &str, path: &str, each: u32) -> Result<Vec<HostSlots>, HostError> {
    let mut hosts = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let place = format!("{path} line {}", number + 1);
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(entry) = words.next() else { continue };
        let mut host = parse_entry(entry, &place, each)?;
        for word in words {
            match word.split_once('=') {
                Some(("slots", slots)) => host.slots = parse_slots(slots, &host.name, &place)?,
                // Open MPI's files may carry this; a host never takes more ranks than its slots here.
                Some(("max_slots" | "max-slots", _)) => {}
                _ => return Err(HostError::BadWord { place, word: word.to_string() }),
            }
        }
        merge(&mut hosts, host);
    }
    if hosts.is_empty() {
        return Err(HostError::Empty { place: format!("host file {path}") });
    }
    Ok(hosts)
}

fn parse_entry(entry: &str, place: &str, each: u32) -> Result<HostSlots, HostError> {
    let (name, slots) = split_slots(entry);
    if name.is_empty() {
        return Err(HostError::NoName { place: place.to_string(), text: entry.to_string() });
    }
    if !is_name(name) {
        return Err(HostError::BadName { place: place.to_string(), name: name.to_string() });
    }
    let slots = slots.map_or(Ok(each), |s| parse_slots(s, name, place))?;
    Ok(HostSlots { name: name.to_string(), slots })
}

/// Whether a remote shell may be given this name (HOST-1).
pub fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '@' | ':' | '%');
    !name.is_empty() && !name.starts_with('-') && name.chars().all(good)
}

/// Cuts `host:4` and `[::1]:4`; a bare IPv6 address has no slots to cut off.
fn split_slots(entry: &str) -> (&str, Option<&str>) {
    if let Some((name, rest)) = entry.strip_prefix('[').and_then(|e| e.split_once(']')) {
        return (name, rest.strip_prefix(':'));
    }
    match entry.split_once(':') {
        Some((_, rest)) if rest.contains(':') => (entry, None),
        Some((name, slots)) => (name, Some(slots)),
        None => (entry, None),
    }
}

fn parse_slots(slots: &str, name: &str, place: &str) -> Result<u32, HostError> {
    slots.parse().ok().filter(|&n| n > 0).ok_or_else(|| HostError::BadSlots {
        place: place.to_string(),
        name: name.to_string(),
        slots: slots.to_string(),
    })
}

fn merge(hosts: &mut Vec<HostSlots>, host: HostSlots) {
    match hosts.iter_mut().find(|h| h.name == host.name) {
        Some(known) => known.slots = known.slots.saturating_add(host.slots),
        None => hosts.push(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, slots: u32) -> HostSlots {
        HostSlots { name: name.to_string(), slots }
    }

    #[test]
    fn lists_name_hosts_with_slots() {
        assert_eq!(parse_list("a:2, b").unwrap(), [host("a", 2), host("b", 1)]);
        assert_eq!(parse_list("a:2,b,a:3").unwrap(), [host("a", 5), host("b", 1)]);
        assert_eq!(
            parse_list("[fe80::1]:4,::1,me@n1:2").unwrap(),
            [host("fe80::1", 4), host("::1", 1), host("me@n1", 2)]
        );
    }

    #[test]
    fn files_name_one_host_a_line() {
        let text = "# my cluster\n\na slots=4\nb:2 # spare\n c\nd slots=1 max_slots=8\n";
        let read = parse_file(text, "f", 1).unwrap();
        assert_eq!(read, [host("a", 4), host("b", 2), host("c", 1), host("d", 1)]);
    }

    #[test]
    fn a_host_that_names_no_number_has_the_slots_given_for_each() {
        assert_eq!(parse_list_with("a:2,b", 4).unwrap(), [host("a", 2), host("b", 4)]);
        assert_eq!(parse_file("a slots=1\nb\n", "f", 4).unwrap(), [host("a", 1), host("b", 4)]);
    }

    #[test]
    fn errors_say_where_and_what() {
        let error = |text: &str| parse_list(text).unwrap_err().to_string();
        assert_eq!(error("a:x"), "-H: \"x\" is not a number of slots; write e.g. a:4 with a number from 1");
        assert!(error("a:0").contains("\"0\" is not a number of slots"));
        assert_eq!(error(" , "), "-H does not name a host; write e.g. node1:4");
        assert!(error(":3").contains("no host name"));
        let error = |text: &str| parse_file(text, "hosts", 1).unwrap_err().to_string();
        assert_eq!(error("# nothing\n"), "host file hosts does not name a host; write e.g. node1:4");
        assert!(error("a\nb slot=3").starts_with("hosts line 2: \"slot=3\" is not understood"));
        assert!(error("a slots=-1").contains("hosts line 1: \"-1\""));
    }

    #[test]
    fn a_host_is_never_an_option_of_the_remote_shell() {
        for bad in ["-oProxyCommand=x", "a;b", "a b", "$(id)"] {
            assert!(matches!(parse_list(bad), Err(HostError::BadName { .. })), "HOST-1: {bad}");
        }
    }
}
