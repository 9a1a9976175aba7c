//! What ssh says when it does not connect, in a sentence with what to do. Text only.

/// Why ssh did not connect, and what to do, where its last words tell. `shell` is the command that was tried.
pub fn explain(words: &[String], shell: &str) -> Option<(String, String)> {
    let says = |text: &str| words.iter().any(|line| line.contains(text));
    let (reason, advice) = if says("IDENTIFICATION HAS CHANGED") {
        (
            "its host key is not the one that ssh has kept for it, so something else may answer in its place",
            "if that host was installed anew, forget its old key with ssh-keygen -R, and connect by hand once".to_string(),
        )
    } else if says("Host key verification failed") {
        let by_hand = shell.replace("-o BatchMode=yes ", "");
        (
            "ssh does not know its host key",
            format!("connect once by hand and compare the key: {by_hand} true"),
        )
    } else if says("Permission denied") {
        (
            "it does not let this user in with the keys that ssh offers",
            "put the public key there with ssh-copy-id, or name user and key: --rsh 'ssh -l USER -i KEYFILE'"
                .to_string(),
        )
    } else {
        return None;
    };
    Some((format!("`{shell}`: {reason}"), format!("  {advice}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_taken_from_the_last_words() {
        let told = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(ToString::to_string).collect();
            explain(&words, "ssh -o BatchMode=yes n1").map(|(reason, advice)| reason + &advice)
        };
        let changed =
            told(&["@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "Host key verification failed."]);
        assert!(changed.unwrap().contains("ssh-keygen -R"));
        let unknown = told(&["Host key verification failed."]).unwrap();
        assert!(unknown.ends_with("compare the key: ssh n1 true"), "{unknown}");
        let denied = told(&["root@n1: Permission denied (publickey)."]).unwrap();
        assert!(denied.contains("ssh-copy-id"), "{denied}");
        assert_eq!(told(&["ssh: connect to host n1 port 22: No route to host"]), None);
    }
}
