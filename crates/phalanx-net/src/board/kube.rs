//! Where pod 0 of a Kubernetes indexed job is. Not a board: only an address. The pods of a job have one name and a number; with a headless
//! service a pod finds pod 0 under the domain that kubelet wrote into its own `/etc/hosts`.

/// The name of pod 0, as this pod's `/etc/hosts` tells; without a subdomain there the plain name, which a service may still resolve.
pub fn pod_zero(pod: &str, index: u32, hosts: &str) -> Option<String> {
    let stem = pod.strip_suffix(&format!("-{index}"))?;
    let names = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let domain = names.flat_map(|line| line.split_whitespace().skip(1)).find_map(|name| {
        let rest = name.strip_prefix(pod)?.strip_prefix('.')?;
        (!rest.is_empty()).then_some(rest)
    });
    Some(domain.map_or_else(|| format!("{stem}-0"), |domain| format!("{stem}-0.{domain}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pod_0_has_the_domain_of_this_pod() {
        let hosts = "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n10.1.2.3\ttrain-11.net.lab.svc.cluster.local\ttrain-11\n";
        assert_eq!(pod_zero("train-11", 11, hosts).as_deref(), Some("train-0.net.lab.svc.cluster.local"));
        assert_eq!(pod_zero("train-11", 11, "10.1.2.3 train-11\n").as_deref(), Some("train-0"));
        assert_eq!(pod_zero("train-11", 1, hosts).as_deref(), None, "the index is another one");
        assert_eq!(pod_zero("a-b-0", 0, "").as_deref(), Some("a-b-0"));
    }

    proptest! {
        /// RDZV-2
        #[test]
        fn any_file_gives_a_name_or_none(pod in "[a-z]{0,4}(-[0-9]{1,2})?", hosts in "([0-9.]{0,9}[ \t]([a-z]{0,4}-[0-9]|[a-z.#-]{0,9})\n){0,4}|.{0,60}") {
            if let Some(name) = pod_zero(&pod, 1, &hosts) {
                prop_assert!(name.contains("-0"));
            }
        }
    }
}
