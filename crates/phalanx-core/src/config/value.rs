//! What the value of a setting may look like.

use std::time::Duration;

pub(super) fn seconds(value: &str) -> Result<Duration, &'static str> {
    match value.parse::<f64>() {
        Ok(s) if s > 0.0 && s <= 1e9 => Ok(Duration::from_secs_f64(s)),
        _ => Err("write a positive number of seconds"),
    }
}

pub(super) fn seconds_or_never(value: &str) -> Result<Duration, &'static str> {
    match value.parse::<f64>() {
        Ok(s) if (0.0..=1e9).contains(&s) => Ok(Duration::from_secs_f64(s)),
        _ => Err("write a number of seconds, 0 for never"),
    }
}

pub(super) fn number(value: &str) -> Result<u64, &'static str> {
    value.parse().map_err(|_| "write a whole number, without K, M or G")
}

pub(super) fn flag(value: &str) -> Result<bool, &'static str> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" => Ok(true),
        "0" | "false" | "off" | "no" => Ok(false),
        _ => Err("it is 0 or 1"),
    }
}

pub(super) fn text(value: &str) -> Result<Option<String>, &'static str> {
    Ok((!value.is_empty()).then(|| value.to_string()))
}
