//! Reads a file of resources, as Parallax has them: one host a line, with its devices (`node1: 0,1,2,3`). Pure.
//!
//! - RES-1: a host's name never begins with `-` and has no blanks, quotes or shell signs: it becomes a word of a command.
//!
//! The order of the lines is meaning: the first host has rank 0. A host that is named on several lines has what all of them give it.

use std::{fmt, net::Ipv6Addr};

/// More lines, or devices, than any cluster has.
const MOST: usize = 1 << 16;
/// What is glued to a host after `user@` is taken for a port from here on; below, nobody can tell it from a device.
const LEAST_PORT: u16 = 22;

/// One host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceHost {
    pub user: Option<String>,
    /// A name, or an address; of IPv6 without brackets.
    pub name: String,
    /// Where its remote shell listens, if the file says so.
    pub port: Option<u16>,
    /// The numbers of its devices; none where the file names none.
    pub devices: Vec<u32>,
    /// How many ranks it takes: one for each device, or one for each line that names none.
    pub n_ranks: u32,
}

/// The hosts of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resources {
    pub hosts: Vec<ResourceHost>,
}

/// What is wrong with a file of resources.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceError {
    #[error("{path} line {line}: {fault}")]
    Line { path: String, line: usize, fault: ResourceFault },
    #[error("{path} names no host; write one a line, e.g. node1: 0,1")]
    Empty { path: String },
    #[error("{path} has more than {MOST} lines")]
    Long { path: String },
}

/// Why a line is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResourceFault {
    #[error("{0:?} has no host name before its colon")]
    NoName(String),
    #[error("{0:?} is not a host name; use letters, digits and . - _, and do not begin with -")]
    BadName(String),
    #[error("{0:?} is not a user's name; use letters, digits and . - _, and do not begin with -")]
    BadUser(String),
    #[error("{0:?} looks like an IPv6 address; write it in brackets: [{0}]")]
    Unbracketed(String),
    #[error("{0:?} is not an IPv6 address; between brackets only those are written")]
    BadAddress(String),
    #[error("a bracket is not closed; write e.g. [fe80::1]: 0,1")]
    OpenBracket,
    #[error("nothing follows the colon; list devices ({0}: 0,1) or leave the colon out")]
    NoDevices(String),
    #[error("{0:?} is not the number of a device; write e.g. 0,1,2")]
    BadDevice(String),
    #[error("device {device} of {host} is listed twice; a device takes one rank")]
    SameDevice { host: String, device: u32 },
    #[error("{host} was named before {}; list its devices on every line, or on none", if *.had { "with devices" } else { "without devices" })]
    Mixed { host: String, had: bool },
    #[error("{host} was named before with another port of its remote shell; a host has one")]
    Ports { host: String },
    #[error("{0:?} is not a port; write a number from 1 to 65535, as in me@node1:2222")]
    BadPort(String),
    #[error(
        "{glued:?} may be a port or a device; write {host}: {glued} for device {glued}, {host}:{glued}: 0 for port {glued}"
    )]
    PortOrDevice { host: String, glued: String },
    #[error(
        "two colons follow the host; write {host}:{first}: {second} for port {first} and devices {second}"
    )]
    TwoColons { host: String, first: String, second: String },
    #[error("{0:?} follows the address; write a colon and devices, e.g. [fe80::1]: 0,1")]
    AfterBracket(String),
    #[error("a host cannot have more than {MOST} devices")]
    ManyDevices,
    #[error("Parallax's JSON of resources is not read; write one host a line, e.g. node1: 0,1")]
    Json,
}

impl ResourceHost {
    /// What a remote shell calls it: with its user, if there is one.
    pub fn login(&self) -> String {
        match &self.user {
            Some(user) => format!("{user}@{}", self.name),
            None => self.name.clone(),
        }
    }

    /// What `ssh` is given to reach it: an address with the port, if there is one.
    pub fn destination(&self) -> String {
        let Some(port) = self.port else { return self.login() };
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        match self.name.contains(':') {
            true => format!("ssh://{user}[{}]:{port}", self.name),
            false => format!("ssh://{user}{}:{port}", self.name),
        }
    }
}

/// As a file says it.
impl fmt::Display for Resources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for host in &self.hosts {
            let user = host.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
            let name = if host.name.contains(':') { format!("[{}]", host.name) } else { host.name.clone() };
            let port = host.port.map(|port| format!(":{port}")).unwrap_or_default();
            let devices: Vec<String> = host.devices.iter().map(u32::to_string).collect();
            if devices.is_empty() {
                // A port alone could be taken for a device without a user before it.
                for _ in 0..host.n_ranks {
                    writeln!(f, "{user}{name}{port}")?;
                }
            } else {
                writeln!(f, "{user}{name}{port}: {}", devices.join(","))?;
            }
        }
        Ok(())
    }
}

/// The hosts of a file; `path` is for errors.
pub fn parse(text: &str, path: &str) -> Result<Resources, ResourceError> {
    let mut hosts: Vec<ResourceHost> = Vec::new();
    // An editor of another system may have put a mark in front.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (number, line) in text.lines().enumerate() {
        if number >= MOST {
            return Err(ResourceError::Long { path: path.to_string() });
        }
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let added = parse_line(line).and_then(|host| add(&mut hosts, host));
        added.map_err(|fault| ResourceError::Line { path: path.to_string(), line: number + 1, fault })?;
    }
    match hosts.is_empty() {
        true => Err(ResourceError::Empty { path: path.to_string() }),
        false => Ok(Resources { hosts }),
    }
}

fn parse_line(line: &str) -> Result<ResourceHost, ResourceFault> {
    if line.starts_with(['{', '}', '"']) {
        return Err(ResourceFault::Json);
    }
    let (user, rest) = match line.split_once('@') {
        Some((user, rest)) => (Some(checked_user(user)?), rest),
        None => (None, line),
    };
    let (name, rest) = split_name(rest)?;
    let (port, devices) = split_rest(&name, user.is_some(), rest)?;
    let n_ranks = devices.len().max(1) as u32;
    Ok(ResourceHost { user, name, port, devices, n_ranks })
}

fn checked_user(user: &str) -> Result<String, ResourceFault> {
    match is_word(user) {
        true => Ok(user.to_string()),
        false => Err(ResourceFault::BadUser(user.to_string())),
    }
}

/// The host, and what follows it: nothing, or a colon and more.
fn split_name(text: &str) -> Result<(String, &str), ResourceFault> {
    if let Some(inside) = text.strip_prefix('[') {
        let (address, rest) = inside.split_once(']').ok_or(ResourceFault::OpenBracket)?;
        // A zone (`%eth0`) is the matter of the system.
        let (bare, zone) = address.split_once('%').unwrap_or((address, "eth0"));
        if bare.parse::<Ipv6Addr>().is_err() || !is_word(zone) {
            return Err(ResourceFault::BadAddress(address.to_string()));
        }
        return match rest.is_empty() || rest.starts_with(':') {
            true => Ok((address.to_string(), rest)),
            false => Err(ResourceFault::AfterBracket(rest.trim().to_string())),
        };
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(ResourceFault::Unbracketed(text.to_string()));
    }
    let at = text.find(':').unwrap_or(text.len());
    let (name, rest) = text.split_at(at);
    let name = name.trim_end();
    if name.is_empty() {
        return Err(ResourceFault::NoName(text.to_string()));
    }
    match is_word(name) {
        true => Ok((name.to_string(), rest)),
        false => Err(ResourceFault::BadName(name.to_string())),
    }
}

/// Letters, digits and a few signs: nothing that a shell or an option could mean (RES-1).
fn is_word(text: &str) -> bool {
    let good = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
    !text.is_empty() && !text.starts_with('-') && text.chars().all(good)
}

/// Port and devices. A list of devices begins with a colon, with or without a blank. A port is glued to the host: before a list, or alone
/// after `user@`, where Parallax had nothing.
fn split_rest(host: &str, has_user: bool, rest: &str) -> Result<(Option<u16>, Vec<u32>), ResourceFault> {
    let Some(after) = rest.strip_prefix(':') else { return Ok((None, Vec::new())) };
    if after.trim().is_empty() {
        return Err(ResourceFault::NoDevices(host.to_string()));
    }
    if let Some((first, second)) = after.split_once(':') {
        let (first, given) = (first.trim(), second.trim());
        if second.contains(':') {
            return Err(ResourceFault::Unbracketed(format!("{host}{rest}")));
        }
        if given.is_empty() {
            return Err(ResourceFault::NoDevices(format!("{host}:{first}")));
        }
        if !second.starts_with(char::is_whitespace) {
            let (first, second) = (first.to_string(), given.to_string());
            return Err(ResourceFault::TwoColons { host: host.to_string(), first, second });
        }
        return Ok((Some(port(first)?), devices(host, given)?));
    }
    let is_glued = !after.starts_with(char::is_whitespace);
    let number = after.trim();
    if has_user && is_glued && !number.contains(',') {
        return match number.parse::<u16>() {
            Ok(found) if found < LEAST_PORT => {
                Err(ResourceFault::PortOrDevice { host: host.to_string(), glued: number.to_string() })
            }
            _ => Ok((Some(port(number)?), Vec::new())),
        };
    }
    Ok((None, devices(host, number)?))
}

fn port(text: &str) -> Result<u16, ResourceFault> {
    let found = digits(text).and_then(|text| text.parse().ok()).filter(|&port| port > 0);
    found.ok_or_else(|| ResourceFault::BadPort(text.to_string()))
}

fn devices(host: &str, text: &str) -> Result<Vec<u32>, ResourceFault> {
    let mut found = Vec::new();
    for word in text.split(',').map(str::trim) {
        let device = digits(word).and_then(|word| word.parse().ok());
        let device = device.ok_or_else(|| ResourceFault::BadDevice(word.to_string()))?;
        if found.contains(&device) {
            return Err(ResourceFault::SameDevice { host: host.to_string(), device });
        }
        if found.len() >= MOST.min(1 << 12) {
            return Err(ResourceFault::ManyDevices);
        }
        found.push(device);
    }
    Ok(found)
}

/// Rust's numbers may begin with `+`; ours do not.
fn digits(text: &str) -> Option<&str> {
    text.bytes().all(|b| b.is_ascii_digit()).then_some(text)
}

fn add(hosts: &mut Vec<ResourceHost>, host: ResourceHost) -> Result<(), ResourceFault> {
    let same = |known: &&mut ResourceHost| known.name == host.name && known.user == host.user;
    let Some(known) = hosts.iter_mut().find(same) else {
        hosts.push(host);
        return Ok(());
    };
    let named = host.login();
    if known.port != host.port {
        return Err(ResourceFault::Ports { host: named });
    }
    if known.devices.is_empty() != host.devices.is_empty() {
        return Err(ResourceFault::Mixed { host: named, had: !known.devices.is_empty() });
    }
    if let Some(&device) = host.devices.iter().find(|device| known.devices.contains(device)) {
        return Err(ResourceFault::SameDevice { host: named, device });
    }
    known.devices.extend(host.devices);
    known.n_ranks = known.n_ranks.saturating_add(host.n_ranks);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Vec<(String, Vec<u32>, u32)> {
        let hosts = parse(text, "f").unwrap().hosts;
        hosts.into_iter().map(|host| (host.destination(), host.devices, host.n_ranks)).collect()
    }

    fn host(name: &str, devices: &[u32], n: u32) -> (String, Vec<u32>, u32) {
        (name.to_string(), devices.to_vec(), n)
    }

    /// The lines of Parallax's documentation, and what people wrote.
    #[test]
    fn good_lines_name_hosts_with_devices() {
        let text =
            "# my cluster\n12.34.56.78: 0,1,2,3,4,5   # with six\n\n12.34.56.79: 1, 3 ,4\n 12.34.56.80\n";
        let wanted = [
            host("12.34.56.78", &[0, 1, 2, 3, 4, 5], 6),
            host("12.34.56.79", &[1, 3, 4], 3),
            host("12.34.56.80", &[], 1),
        ];
        assert_eq!(read(text), wanted);
        assert_eq!(read("localhost\nlocalhost\r\n"), [host("localhost", &[], 2)]);
        assert_eq!(
            read("localhost:0\nnode_1:1\nlocalhost: 1"),
            [host("localhost", &[0, 1], 2), host("node_1", &[1], 1)]
        );
        assert_eq!(read("\u{feff}a:3,1"), [host("a", &[3, 1], 2)]);
        assert_eq!(read("12.34.56.789"), [host("12.34.56.789", &[], 1)], "a name is the resolver's matter");
    }

    #[test]
    fn users_ports_and_addresses_of_ipv6() {
        assert_eq!(read("me@n1"), [host("me@n1", &[], 1)]);
        assert_eq!(read("me@n1:2222"), [host("ssh://me@n1:2222", &[], 1)]);
        assert_eq!(read("me@n1:2222: 0,1"), [host("ssh://me@n1:2222", &[0, 1], 2)]);
        assert_eq!(read("n1:2222: 0"), [host("ssh://n1:2222", &[0], 1)]);
        assert_eq!(read("me@n1: 2"), [host("me@n1", &[2], 1)]);
        assert_eq!(read("me@n1:2,3"), [host("me@n1", &[2, 3], 2)]);
        assert_eq!(read("[fe80::1]: 0,1"), [host("fe80::1", &[0, 1], 2)]);
        assert_eq!(
            read("[fe80::1%eth0]\n[::1]:22: 4"),
            [host("fe80::1%eth0", &[], 1), host("ssh://[::1]:22", &[4], 1)]
        );
        assert_eq!(read("me@[::1]:2222"), [host("ssh://me@[::1]:2222", &[], 1)]);
    }

    #[test]
    fn bad_lines_are_refused_with_file_line_and_reason() {
        let says = |text: &str| parse(text, "res.txt").unwrap_err().to_string();
        let table = [
            (
                "a\nh:",
                "res.txt line 2: nothing follows the colon; list devices (h: 0,1) or leave the colon out",
            ),
            ("h:1:2", "res.txt line 1: two colons follow the host; write h:1: 2 for port 1 and devices 2"),
            (
                "\n\nfe80::1",
                "res.txt line 3: \"fe80::1\" looks like an IPv6 address; write it in brackets: [fe80::1]",
            ),
            (
                "fe80::1: 0,1",
                "res.txt line 1: \"fe80::1: 0,1\" looks like an IPv6 address; write it in brackets: [fe80::1: 0,1]",
            ),
            (": 0,1", "res.txt line 1: \": 0,1\" has no host name before its colon"),
            ("h: 0,,1", "res.txt line 1: \"\" is not the number of a device; write e.g. 0,1,2"),
            ("h: 0,x", "res.txt line 1: \"x\" is not the number of a device; write e.g. 0,1,2"),
            ("h: +1", "res.txt line 1: \"+1\" is not the number of a device; write e.g. 0,1,2"),
            ("h: -1", "res.txt line 1: \"-1\" is not the number of a device; write e.g. 0,1,2"),
            ("h: 0,0", "res.txt line 1: device 0 of h is listed twice; a device takes one rank"),
            ("h: 0\nh: 0", "res.txt line 2: device 0 of h is listed twice; a device takes one rank"),
            (
                "h\nh: 0",
                "res.txt line 2: h was named before without devices; list its devices on every line, or on none",
            ),
            (
                "h: 0\nh",
                "res.txt line 2: h was named before with devices; list its devices on every line, or on none",
            ),
            (
                "u@h:2222\nu@h",
                "res.txt line 2: u@h was named before with another port of its remote shell; a host has one",
            ),
            (
                "h slots=4",
                "res.txt line 1: \"h slots=4\" is not a host name; use letters, digits and . - _, and do not begin with -",
            ),
            (
                "a+b^c: 0",
                "res.txt line 1: \"a+b^c\" is not a host name; use letters, digits and . - _, and do not begin with -",
            ),
            (
                "-oProxyCommand=x",
                "res.txt line 1: \"-oProxyCommand=x\" is not a host name; use letters, digits and . - _, and do not begin with -",
            ),
            (
                "-o@h",
                "res.txt line 1: \"-o\" is not a user's name; use letters, digits and . - _, and do not begin with -",
            ),
            (
                "me@h:2",
                "res.txt line 1: \"2\" may be a port or a device; write h: 2 for device 2, h:2: 0 for port 2",
            ),
            (
                "me@h:70000",
                "res.txt line 1: \"70000\" is not a port; write a number from 1 to 65535, as in me@node1:2222",
            ),
            ("[fe80::1", "res.txt line 1: a bracket is not closed; write e.g. [fe80::1]: 0,1"),
            (
                "[node1]: 0",
                "res.txt line 1: \"node1\" is not an IPv6 address; between brackets only those are written",
            ),
            (
                "[::1] 0",
                "res.txt line 1: \"0\" follows the address; write a colon and devices, e.g. [fe80::1]: 0,1",
            ),
            (
                "{\"worker\": [",
                "res.txt line 1: Parallax's JSON of resources is not read; write one host a line, e.g. node1: 0,1",
            ),
            ("# nothing\n \n", "res.txt names no host; write one a line, e.g. node1: 0,1"),
            ("", "res.txt names no host; write one a line, e.g. node1: 0,1"),
        ];
        for (text, wanted) in table {
            assert_eq!(says(text), wanted);
        }
    }

    #[test]
    fn a_host_is_never_an_option_or_a_command_of_a_shell() {
        for bad in ["-oProxyCommand=x", "a;b", "a b", "$(id)", "u@-x", "`id`", "a'b", "[::1%$(id)]"] {
            assert!(parse(bad, "f").is_err(), "RES-1: {bad}");
        }
    }

    fn any_host() -> impl Strategy<Value = ResourceHost> {
        let name = prop_oneof!["[a-z][a-z0-9_.-]{0,8}", Just("fe80::1".to_string())];
        let devices = prop::collection::btree_set(0..64u32, 0..5);
        (prop::option::of("[a-z]{1,4}"), name, prop::option::of(22..=u16::MAX), devices).prop_map(
            |(user, name, port, devices)| {
                let devices: Vec<u32> = devices.into_iter().collect();
                // Without a user, a port is written before devices only.
                let port = port.filter(|_| user.is_some() || !devices.is_empty());
                let n_ranks = devices.len().max(1) as u32;
                ResourceHost { user, name, port, devices, n_ranks }
            },
        )
    }

    proptest! {
        #[test]
        fn what_was_read_is_written_and_read_again(hosts in prop::collection::vec(any_host(), 1..6)) {
            let mut unique: Vec<ResourceHost> = Vec::new();
            for host in hosts {
                if unique.iter().all(|known| known.login() != host.login()) {
                    unique.push(host);
                }
            }
            let all = Resources { hosts: unique };
            prop_assert_eq!(parse(&all.to_string(), "f"), Ok(all));
        }

        #[test]
        fn any_text_is_answered(text in "[a-z0-9:@,#\\[\\]%. \n+-]{0,40}") {
            if let Ok(read) = parse(&text, "f") {
                prop_assert!(read.hosts.iter().all(|h| h.n_ranks > 0 && !h.destination().starts_with('-')));
            }
        }
    }
}
