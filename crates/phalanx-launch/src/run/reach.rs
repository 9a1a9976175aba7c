//! Which hosts a command line means, and how they are reached: those that flags name, those of the Slurm allocation, or this machine.
//!
//! - REACH-1: flags win: `-H`, `--hostfile` and `--resource-info` over the allocation, `--rsh` over `srun`.
//!   A flag that says how to reach hosts needs hosts: without any it is refused.
//! - REACH-2: hosts of the allocation are reached through `srun`, all of them, this machine too: so a signal that Slurm sends to the job's steps
//!   reaches every rank. A job on this machine alone is started directly, as everywhere.

use super::{LaunchError, route::Here};
use crate::{
    cli::HostArgs,
    hosts::{self, HostSlots},
    rsh::{Rsh, RshError},
    slurm::{self, Allocation, SlurmError},
};
use phalanx_net::resources::{self, ResourceHost, Resources};
use std::{collections::BTreeMap, env, fs};

/// Hosts with slots.
#[derive(Debug)]
pub struct JobHosts {
    pub hosts: Vec<HostSlots>,
    /// The flag that named them, or the allocation.
    pub source: &'static str,
    /// The allocation in which all of them are.
    pub allocation: Option<Allocation>,
    /// Hosts whose devices were named, and those devices: `0,1`.
    pub devices: BTreeMap<String, String>,
}

/// What flags say of hosts.
struct Named {
    hosts: Vec<HostSlots>,
    flag: &'static str,
    devices: BTreeMap<String, String>,
}

impl JobHosts {
    /// `None` when nobody named any host.
    pub fn new(args: &HostArgs) -> Result<Option<JobHosts>, LaunchError> {
        let var = |name: &str| env::var(name).ok();
        JobHosts::of(args, named(args)?, slurm::allocation(&var))
    }

    fn of(
        args: &HostArgs,
        named: Option<Named>,
        allocation: Result<Option<Allocation>, SlurmError>,
    ) -> Result<Option<JobHosts>, LaunchError> {
        if let Some(Named { hosts, flag, devices }) = named {
            // What is wrong with an allocation is no matter to hosts that a flag names (REACH-1).
            let around = |a: &Allocation| hosts.iter().all(|host| a.has(&host.name));
            let allocation = allocation.ok().flatten().filter(around);
            return Ok(Some(JobHosts { hosts, source: flag, allocation, devices }));
        }
        let allocation = allocation?;
        let ways = [("--rsh", args.rsh.is_some()), ("--remote-exe", args.remote_exe.is_some())];
        if let (None, Some((flag, _))) = (&allocation, ways.into_iter().find(|(_, given)| *given)) {
            return Err(LaunchError::NoHosts { flag });
        }
        Ok(allocation.map(|allocation| {
            let each = |host: &HostSlots| args.slots_per_host.unwrap_or(host.slots);
            let hosts = allocation.hosts.iter().map(|h| HostSlots { slots: each(h), ..h.clone() }).collect();
            let devices = BTreeMap::new();
            JobHosts { hosts, source: slurm::SOURCE, allocation: Some(allocation), devices }
        }))
    }

    /// Those of a rank file.
    pub fn in_file(hosts: Vec<HostSlots>) -> JobHosts {
        let around = |a: &Allocation| hosts.iter().all(|host| a.has(&host.name));
        let allocation = slurm::allocation(&|name: &str| env::var(name).ok()).ok().flatten().filter(around);
        JobHosts { hosts, source: "-rf", allocation, devices: BTreeMap::new() }
    }

    pub fn is_by_slurm(&self) -> bool {
        self.source == slurm::SOURCE
    }

    /// The remote shell to these of the hosts.
    pub fn rsh(
        reach: Option<&JobHosts>,
        args: &HostArgs,
        names: &[&str],
        here: &Here,
    ) -> Result<Rsh, RshError> {
        let is_here_alone = matches!(names, [name] if here.is(name));
        match reach.and_then(|r| r.allocation.as_ref()).filter(|_| args.rsh.is_none() && !is_here_alone) {
            Some(allocation) => Ok(Rsh::of_words(allocation.srun())),
            None => Rsh::new(args.rsh.as_deref()),
        }
    }

    /// Says where the hosts came from, when it was no flag.
    pub fn told(&self) -> Option<String> {
        let allocation = self.allocation.as_ref().filter(|_| self.is_by_slurm())?;
        let [hosts, slots] = allocation.told_by;
        Some(format!("hosts and slots are those of Slurm job {} ({hosts}, {slots})", allocation.job))
    }
}

/// The hosts that flags name, and the flag.
fn named(args: &HostArgs) -> Result<Option<Named>, LaunchError> {
    let each = args.slots_per_host.unwrap_or(1);
    let devices = BTreeMap::new();
    if let Some(list) = &args.list {
        return Ok(Some(Named { hosts: hosts::parse_list_with(list, each)?, flag: "-H", devices }));
    }
    if let Some(path) = &args.resource_info {
        let read = |why| LaunchError::ResourceFile { path: path.clone(), why };
        let text = fs::read_to_string(path).map_err(read)?;
        return of_resources(args, &resources::parse(&text, &path.display().to_string())?).map(Some);
    }
    let Some(path) = &args.file else { return Ok(None) };
    let text = fs::read_to_string(path).map_err(|why| LaunchError::HostFile { path: path.clone(), why })?;
    let hosts = hosts::parse_file(&text, &path.display().to_string(), each)?;
    Ok(Some(Named { hosts, flag: "--hostfile", devices }))
}

/// A rank for each device; a line without devices is worth as many as a host without a number. `ssh` alone understands a port with the host.
fn of_resources(args: &HostArgs, read: &Resources) -> Result<Named, LaunchError> {
    let each = args.slots_per_host.unwrap_or(1);
    let is_ssh = Rsh::new(args.rsh.as_deref())?.encrypts();
    if let Some(host) = read.hosts.iter().find(|host| host.port.is_some() && !is_ssh) {
        let (host, port) = (host.login(), host.port.unwrap_or_default());
        return Err(LaunchError::PortOfResource { host, port });
    }
    let slots = |host: &ResourceHost| match host.devices.is_empty() {
        true => host.n_ranks.saturating_mul(each),
        false => host.n_ranks,
    };
    let slots = |host: &ResourceHost| HostSlots { name: host.destination(), slots: slots(host) };
    let listed = |host: &ResourceHost| {
        let numbers: Vec<String> = host.devices.iter().map(u32::to_string).collect();
        (!numbers.is_empty()).then(|| (host.destination(), numbers.join(",")))
    };
    let devices = read.hosts.iter().filter_map(listed).collect();
    Ok(Named { hosts: read.hosts.iter().map(slots).collect(), flag: "--resource-info", devices })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn allocation() -> Result<Option<Allocation>, SlurmError> {
        let hosts = hosts::parse_list("n1:2,n2:3").unwrap();
        Ok(Some(Allocation { job: "7".into(), hosts, told_by: ["A", "B"] }))
    }

    /// Hosts, and the program that leads to the first of them.
    fn reached(args: &HostArgs, n_hosts: usize) -> (String, String) {
        let reach = JobHosts::of(args, named(args).unwrap(), allocation()).unwrap().unwrap();
        let here = Here { hostname: "n1.site".into(), node: Some("n1".into()), addresses: Vec::new() };
        let names: Vec<&str> = reach.hosts.iter().map(|h| h.name.as_str()).take(n_hosts).collect();
        let rsh = JobHosts::rsh(Some(&reach), args, &names, &here).unwrap();
        let command = rsh.command("n1", Path::new("/p"), "agent");
        let slots: Vec<String> = reach.hosts.iter().map(|h| format!("{}:{}", h.name, h.slots)).collect();
        (slots.join(","), command[0].to_string_lossy().into_owned())
    }

    #[test]
    fn flags_win_over_the_allocation() {
        let args = HostArgs::default();
        assert_eq!(reached(&args, 2), ("n1:2,n2:3".into(), "srun".into()), "REACH-2");
        assert_eq!(reached(&args, 1).1, "ssh", "REACH-2: this machine alone is started directly");
        let each = HostArgs { slots_per_host: Some(4), ..HostArgs::default() };
        assert_eq!(reached(&each, 2).0, "n1:4,n2:4");
        let rsh = HostArgs { rsh: Some("my-rsh".into()), ..HostArgs::default() };
        assert_eq!(reached(&rsh, 2), ("n1:2,n2:3".into(), "my-rsh".into()), "REACH-1");
        let list = |text: &str| HostArgs { list: Some(text.into()), ..HostArgs::default() };
        assert_eq!(reached(&list("n2:1"), 1), ("n2:1".into(), "srun".into()), "REACH-1");
        assert_eq!(reached(&list("n2:1,other:1"), 2).1, "ssh", "srun does not lead out of the allocation");
    }

    #[test]
    fn a_flag_makes_a_wrong_allocation_harmless() {
        let wrong = || Err(SlurmError::Half { missing: "X" });
        let named = named(&HostArgs { list: Some("a:2".into()), ..HostArgs::default() }).unwrap();
        assert!(JobHosts::of(&HostArgs::default(), named, wrong()).unwrap().is_some(), "REACH-1");
        assert!(JobHosts::of(&HostArgs::default(), None, wrong()).is_err());
        assert!(JobHosts::of(&HostArgs::default(), None, Ok(None)).unwrap().is_none());
    }

    #[test]
    fn a_way_to_no_host_is_refused() {
        let rsh = HostArgs { rsh: Some("r".into()), ..HostArgs::default() };
        let exe = HostArgs { remote_exe: Some("/p".into()), ..HostArgs::default() };
        for (args, flag) in [(&rsh, "--rsh"), (&exe, "--remote-exe")] {
            let error = JobHosts::of(args, None, Ok(None)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{flag} leads to other hosts, and none is named")), "{error}");
            assert!(JobHosts::of(args, None, allocation()).is_ok(), "REACH-1: those of the allocation");
        }
    }

    #[test]
    fn resources_are_hosts_with_a_rank_for_each_device() {
        let read = resources::parse("a: 3,1\nme@b:2222\nlocalhost\nlocalhost", "f").unwrap();
        let args = HostArgs { slots_per_host: Some(2), ..HostArgs::default() };
        let named = of_resources(&args, &read).unwrap();
        let slots: Vec<(&str, u32)> = named.hosts.iter().map(|h| (h.name.as_str(), h.slots)).collect();
        assert_eq!(slots, [("a", 2), ("ssh://me@b:2222", 2), ("localhost", 4)]);
        assert_eq!(named.devices, BTreeMap::from([("a".to_string(), "3,1".to_string())]));
        let other = HostArgs { rsh: Some("my-shell".into()), ..HostArgs::default() };
        let error = of_resources(&other, &read).err().unwrap().to_string();
        assert!(error.contains("me@b:2222") && error.contains("--rsh"), "{error}");
    }
}
