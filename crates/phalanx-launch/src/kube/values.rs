//! What a flag's value may be in Kubernetes: names, quantities, variables. Pure.

use crate::environment::is_foreign;
use phalanx_core::config::RESERVED;

/// DNS allows no more in one label.
pub const LABEL: usize = 63;
/// As many ranks as one host can have.
const MOST_SLOTS: u32 = 1024;

/// The group of the files of the secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Id(u32),
    Nobody,
}

pub fn n_nodes(text: &str) -> Result<u32, String> {
    let positive = text.parse().ok().filter(|n| *n > 0);
    positive.ok_or_else(|| "write a whole number of pods from 1, e.g. --nodes 4".into())
}

pub fn n_slots(text: &str) -> Result<u32, String> {
    let some = text.parse().ok().filter(|n| (1..=MOST_SLOTS).contains(n));
    some.ok_or_else(|| {
        format!("write a whole number of ranks in each pod from 1 to {MOST_SLOTS}, e.g. --slots 8")
    })
}

pub fn n_gpus(text: &str) -> Result<u32, String> {
    let positive = text.parse().ok().filter(|n| *n > 0);
    positive
        .ok_or_else(|| "write a whole number of GPUs from 1, e.g. --gpus 8, or leave it out for none".into())
}

/// Whether this can name an image: `[host[:port]/]path[:tag][@digest]`, as registries and container engines write it.
pub fn is_image(text: &str) -> bool {
    let (text, digest) = match text.split_once('@') {
        Some((text, digest)) => (text, Some(digest)),
        None => (text, None),
    };
    let is_digest = |digest: &str| {
        let (algorithm, hex) = digest.split_once(':').unwrap_or_default();
        !algorithm.is_empty() && hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit())
    };
    let (place, last) = text.rsplit_once('/').map_or(("", text), |(place, last)| (place, last));
    let (name, tag) = match last.split_once(':') {
        Some((name, tag)) => (name, Some(tag)),
        None => (last, None),
    };
    let is_tag = |tag: &str| {
        (1..=128).contains(&tag.len())
            && tag.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            && !tag.starts_with(['.', '-'])
    };
    let is_part = |part: &str| {
        let is_inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        part.starts_with(is_inside)
            && part.ends_with(is_inside)
            && part.chars().all(|c| is_inside(c) || "._-".contains(c))
    };
    let is_host = |host: &str| {
        let (name, port) = host.rsplit_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
        let is_named = name.chars().all(|c| c.is_ascii_alphanumeric() || ".-[]:".contains(c));
        !name.is_empty() && is_named && port.is_none_or(|port| port.parse::<u16>().is_ok())
    };
    let mut parts: Vec<&str> = if place.is_empty() { Vec::new() } else { place.split('/').collect() };
    // Only a first part can be a host; without a dot and a port it is read as any other.
    if parts.first().is_some_and(|first| first.contains(['.', ':']) || *first == "localhost")
        && !is_host(parts.remove(0))
    {
        return false;
    }
    (!text.contains('/') || !place.is_empty())
        && parts.into_iter().chain([name]).all(is_part)
        && tag.is_none_or(is_tag)
        && digest.is_none_or(is_digest)
}

/// As many bytes as Kubernetes makes of a quantity that [`memory`] has taken.
pub fn bytes(text: &str) -> f64 {
    const POWERS: [&str; 6] = ["k", "m", "g", "t", "p", "e"];
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let base: f64 = if unit.ends_with('i') { 1024.0 } else { 1000.0 };
    let power = POWERS.iter().position(|p| unit.to_ascii_lowercase().starts_with(p)).map_or(0, |i| i + 1);
    number.parse::<f64>().unwrap_or(0.0) * base.powi(power as i32)
}

/// A service's name begins with a letter, which other names need not (RFC 1035).
pub fn name(text: &str) -> Result<String, String> {
    let is_name = is_label(text) && text.starts_with(|c: char| c.is_ascii_lowercase());
    is_name.then(|| text.to_string()).ok_or_else(|| {
        format!(
            "write a DNS label: at most {LABEL} of a-z, 0-9 and -, a letter first and no - at the end, e.g. --name resnet-7"
        )
    })
}

pub fn namespace(text: &str) -> Result<String, String> {
    is_label(text).then(|| text.to_string()).ok_or_else(|| {
        format!(
            "write a DNS label: at most {LABEL} of a-z, 0-9 and -, no - at either end, e.g. --namespace lab"
        )
    })
}

/// Labels with dots between them (RFC 1123).
pub fn secret_name(text: &str) -> Result<String, String> {
    let is_name = text.len() <= 253 && text.split('.').all(is_label);
    is_name.then(|| text.to_string()).ok_or_else(|| {
        "write the name of a Secret, not the secret itself: a-z, 0-9, - and dots, e.g. --secret phalanx-key".into()
    })
}

fn is_label(text: &str) -> bool {
    let is_inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=LABEL).contains(&text.len())
        && text.chars().all(is_inside)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Cores, or thousandths of one.
pub fn cpu(text: &str) -> Result<String, String> {
    quantity(text, &["", "m"]).ok_or_else(|| "write a positive number of cores, e.g. 4 or 500m".into())
}

/// Bytes with a unit of Kubernetes.
pub fn memory(text: &str) -> Result<String, String> {
    const UNITS: [&str; 12] = ["k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    quantity(text, &UNITS).ok_or_else(|| "write a positive number with a unit, e.g. 16Gi or 512Mi".into())
}

fn quantity(text: &str, units: &[&str]) -> Option<String> {
    let unit = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let is_number = number.starts_with(|c: char| c.is_ascii_digit())
        && number.ends_with(|c: char| c.is_ascii_digit())
        && number.parse::<f64>().is_ok_and(|n| n > 0.0);
    (is_number && units.contains(&unit)).then(|| text.to_string())
}

pub fn group(text: &str) -> Result<Group, String> {
    match text {
        "none" => Ok(Group::Nobody),
        _ => text.parse().map(Group::Id).map_err(|_| "write the number of a group, or none".into()),
    }
}

/// A variable, unless the manifest sets it itself.
pub fn env(text: &str) -> Result<(String, String), String> {
    let is_name = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let Some((name, value)) = text.split_once('=').filter(|(name, _)| is_name(name)) else {
        return Err("write NAME=VALUE, e.g. --env OMP_NUM_THREADS=4".into());
    };
    match name {
        "PHALANX_SECRET" | "PHALANX_SECRET_FD" | "PHALANX_SECRET_FILE" => {
            return Err("a secret belongs into a Secret: write --secret NAME".into());
        }
        "PHALANX_START_TIMEOUT" => return Err("write --start-timeout S".into()),
        "JOB_COMPLETION_INDEX" => return Err("Kubernetes sets this variable; leave it out".into()),
        _ if RESERVED.contains(&name) => {
            return Err("the manifest and the launcher set this variable; leave it out".into());
        }
        _ if is_foreign(name.as_bytes()) => {
            return Err("by this variable other launchers tell a process its rank; leave it out".into());
        }
        _ => {}
    }
    Ok((name.to_string(), value.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_kubernetes_takes() {
        for good in ["a", "resnet-7", &"a".repeat(63)] {
            assert!(name(good).is_ok(), "{good}");
        }
        for bad in ["", "7-resnet", "Resnet", "a_b", "a.b", "-a", "a-", "é", &"a".repeat(64)] {
            assert!(name(bad).unwrap_err().contains("e.g. --name resnet-7"), "{bad}");
        }
        assert!(namespace("7lab").is_ok() && namespace("lab.x").is_err());
        assert!(secret_name("a.b-c").is_ok() && secret_name("a..b").is_err() && secret_name("A").is_err());
    }

    #[test]
    fn images_are_those_that_registries_take() {
        let digest = format!("i@sha256:{}", "0f".repeat(32));
        for good in [
            "i",
            "train:1",
            "lab/train",
            "registry.example/train:1",
            "localhost:5000/a/b_c:V1.2-x",
            "10.0.0.1:5/i",
            &digest,
            "[::1]:5000/i",
        ] {
            assert!(is_image(good), "{good}");
        }
        for bad in [
            "",
            "IMG:UP:x",
            "IMG",
            "i:",
            "i:-a",
            "i::",
            "a b",
            "/i",
            "a//b",
            "a/",
            "-i",
            "h.x:port/i",
            "i@",
            "i@sha256:12",
            "i:a/b:c:d",
        ] {
            assert!(!is_image(bad), "{bad}");
        }
    }

    #[test]
    fn gpus_are_whole_and_sizes_are_compared_in_bytes() {
        assert_eq!(n_gpus("8"), Ok(8));
        for bad in ["0", "1.5", "-1", ""] {
            assert!(n_gpus(bad).unwrap_err().contains("from 1, e.g. --gpus 8"), "{bad}");
        }
        assert_eq!(
            (bytes("1Ki"), bytes("1k"), bytes("1.5Gi")),
            (1024.0, 1000.0, 1.5 * 1024.0 * 1024.0 * 1024.0)
        );
        assert!(bytes("1000Mi") < bytes("1Gi") && bytes("1G") < bytes("1Gi") && bytes("2E") > bytes("1Pi"));
    }

    #[test]
    fn quantities_are_those_that_kubernetes_takes() {
        for good in ["4", "0.5", "500m"] {
            assert_eq!(cpu(good).as_deref(), Ok(good));
            assert!(memory(good).is_err(), "{good}");
        }
        for good in ["16Gi", "1.5G", "512Mi"] {
            assert_eq!(memory(good).as_deref(), Ok(good));
            assert!(cpu(good).is_err(), "{good}");
        }
        for bad in ["", "0", "0Gi", "-1", "Gi", "4 Gi", "4gb", ".5Gi", "5.Gi", "1e3"] {
            assert!(cpu(bad).is_err() && memory(bad).is_err(), "{bad}");
        }
        assert!(env("RANK=5").is_err() && env("OMPI_COMM_WORLD_RANK=1").is_err() && env("LR=5").is_ok());
    }

    #[test]
    fn variables_that_the_manifest_sets_are_refused() {
        assert_eq!(env("A=b=c"), Ok(("A".into(), "b=c".into())));
        assert_eq!(env("_a="), Ok(("_a".into(), String::new())));
        for bad in
            ["A", "=b", "1A=b", "A B=c", "", "PHALANX_RANK=0", "PHALANX_SIZE=2", "JOB_COMPLETION_INDEX=1"]
        {
            assert!(env(bad).is_err(), "{bad}");
        }
        assert!(env("PHALANX_SECRET=x").unwrap_err().contains("--secret NAME"));
    }
}
