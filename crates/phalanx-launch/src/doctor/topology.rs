//! `phalanx doctor --topology`: what moving data costs inside hosts and between them, and which shape follows.

use super::{
    DoctorArgs,
    finding::Finding,
    pair::{Figures, PairFigures},
    shape::{self, Fit, ShapeAdvice},
    timed,
};
use crate::{
    agent::cores,
    hosts::HostSlots,
    run::{JobHosts, LaunchError},
    simulate::MeasuredCosts,
};
use phalanx_collective::plan::{
    self, Memory, PlanRequest, Wiring,
    simulate::{CostModel, TierCost, simulate},
    step::{CollectiveOp, Layout},
};
use phalanx_core::{Tiers, Topology};
use std::{ffi::OsString, sync::Arc, time::Duration};

/// The vector with which ranks of a host are measured, and the one that is predicted.
const INSIDE_BYTES: u64 = 4 << 20;
const PREDICTED_BYTES: u64 = 64 << 20;
/// What a measurement inside a host may take beside starting.
const INSIDE: Duration = Duration::from_secs(20);

/// Nothing, unless it was asked for.
pub fn check(args: &DoctorArgs, findings: &[Finding]) -> Vec<Finding> {
    let Some(asked) = &args.topology else { return Vec::new() };
    let asked = match asked.as_str() {
        "" => None,
        text => match text.parse::<Tiers>() {
            Ok(tiers) => Some(tiers),
            Err(why) => {
                let so = "there is nothing to compare with";
                return vec![Finding::fail("topology", why.to_string(), so, "write e.g. --topology=4x3")];
            }
        },
    };
    let hosts = match hosts(args) {
        Ok(hosts) => hosts,
        // Named by the check of hosts already.
        Err(_) => return Vec::new(),
    };
    let pairs: Vec<Figures> = findings.iter().filter_map(|f| f.figures.clone()).collect();
    let mut found = Vec::new();
    let inside: Vec<(&HostSlots, Result<TierCost, String>)> =
        hosts.iter().map(|host| (host, inside(args, host))).collect();
    for (host, cost) in &inside {
        found.push(match cost {
            Ok(cost) => Finding::ok(
                &format!("{} inside", host.name),
                format!(
                    "ranks wait {:.1} us for each other and move {:.2} GB/s",
                    cost.latency_us, cost.gbytes_per_s
                ),
            ),
            Err(why) => Finding::fail(
                &format!("{} inside", host.name),
                format!("its ranks could not be measured: {why}"),
                "no shape can be suggested",
                &format!("try: phalanx bench -np {} -H {}:{0}", host.slots.max(2), host.name),
            ),
        });
    }
    let costs: Option<Vec<TierCost>> = inside.into_iter().map(|(_, cost)| cost.ok()).collect();
    let Some(costs) = costs else { return found };
    if let Some(unmeasured) = unmeasured(&hosts, &pairs) {
        found.push(unmeasured);
        return found;
    }
    let advice = shape::suggest(&hosts, &pairs);
    let costs = measured(&costs, &pairs, &advice);
    found.push(judge(&hosts, &advice, asked.as_ref(), &costs));
    found
}

/// Says that no shape follows where hosts were not measured; what is wrong between them was named by the check of pairs.
fn unmeasured(hosts: &[HostSlots], pairs: &[Figures]) -> Option<Finding> {
    let why = match pairs.iter().find(|pair| pair.measured.is_none()) {
        Some(pair) => format!("{} and {} could not be measured, see above", pair.hosts[0], pair.hosts[1]),
        None if hosts.len() > 1 && pairs.is_empty() => {
            "no two hosts could be measured, see above".to_string()
        }
        None => return None,
    };
    Some(Finding::note("topology", format!("no shape is suggested: {why}")))
}

fn hosts(args: &DoctorArgs) -> Result<Vec<HostSlots>, LaunchError> {
    let here = || vec![HostSlots { name: "localhost".to_string(), slots: cores::n_usable() }];
    Ok(JobHosts::new(&args.hosts)?.map_or_else(here, |reach| reach.hosts))
}

/// Measures the ranks of one host: a small world of its own.
fn inside(args: &DoctorArgs, host: &HostSlots) -> Result<TierCost, String> {
    let n = host.slots.max(2);
    let list =
        if host.name.contains(':') { format!("[{}]:{n}", host.name) } else { format!("{}:{n}", host.name) };
    let mut command: Vec<OsString> = vec![args.hosts.own.exe.clone().into_os_string()];
    command
        .extend(["run", "--np", &n.to_string(), "--hosts", &list, "--tag-output", "never"].map(Into::into));
    let rsh = args.hosts.rsh.as_ref().map(|rsh| ["--rsh".into(), OsString::from(rsh)]);
    let exe = args.hosts.remote_exe.as_ref().map(|exe| ["--remote-exe".into(), exe.clone().into_os_string()]);
    command.extend(rsh.into_iter().chain(exe).flatten());
    let size = INSIDE_BYTES.to_string();
    let bench = ["bench", "--op", "barrier,allreduce", "--sizes", &size, "--seconds", "0.3", "--json"];
    command.extend(["--itself", "--"].into_iter().chain(bench).map(OsString::from));
    let said = timed::run(&command, args.timeout + INSIDE).map_err(|why| why.to_string())?;
    if !said.status.is_some_and(|status| status.success()) {
        let last = said.stderr.trim().lines().last().unwrap_or("no answer in time");
        return Err(last.to_string());
    }
    cost_of_rows(&said.stdout, n).ok_or_else(|| "it printed no figures".to_string())
}

/// What a tier 0 costs in which `phalanx bench` measures this.
fn cost_of_rows(text: &str, n_ranks: u32) -> Option<TierCost> {
    let rows: Vec<serde_json::Value> = text.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    let median = |op: &str| rows.iter().find(|row| row["op"] == op)?["median_us"].as_f64();
    let (latency_us, took_us) = (median("barrier")?, median("allreduce")?);
    let request = request(&Topology::one_host(n_ranks), None, INSIDE_BYTES);
    let at = |gbytes_per_s: f64| {
        let cost = CostModel {
            tiers: vec![TierCost { latency_us, gbytes_per_s }],
            reduce_gbytes_per_s: gbytes_per_s,
        };
        simulate(&request, plan::select(&request), &cost).time_us
    };
    // The model is linear in the time of a byte: two prices give it.
    let (slow, fast) = (at(1.0), at(2.0));
    let per_byte = 2.0 * (slow - fast);
    let rest = slow - per_byte;
    // A latency that explains everything leaves the speed open: take what the bytes alone would need.
    let left = if took_us > rest { took_us - rest } else { took_us };
    (left > 0.0 && per_byte > 0.0).then(|| TierCost { latency_us, gbytes_per_s: per_byte / left })
}

fn request(topology: &Topology, wiring: Option<Wiring>, bytes: u64) -> PlanRequest {
    PlanRequest {
        op: CollectiveOp::Allreduce,
        layout: Layout::Whole { len: bytes / 4 },
        topology: Arc::new(topology.clone()),
        tiers: wiring,
        elem_bytes: 4,
        in_place: true,
        memory: Memory::Private,
        slot_bytes: phalanx_net::arena::SLOT_BYTES as u64,
        segment_bytes: phalanx_core::Config::default().segment_bytes,
        links_only: false,
    }
}

/// One cost for each tier: the slowest host's, and the middle ones of near and of far pairs.
fn measured(inside: &[TierCost], pairs: &[Figures], advice: &ShapeAdvice) -> MeasuredCosts {
    let rack_of = |name: &String| advice.racks.iter().position(|rack| rack.contains(name));
    let of = |is_far: bool| {
        let some = pairs.iter().filter(|pair| (rack_of(&pair.hosts[0]) != rack_of(&pair.hosts[1])) == is_far);
        between(some.filter_map(|pair| pair.measured.as_ref()))
    };
    let slowest = inside.iter().map(|cost| cost.gbytes_per_s).fold(f64::INFINITY, f64::min);
    let latest = inside.iter().map(|cost| cost.latency_us).fold(0.0, f64::max);
    let tier_costs = [Some((latest, slowest)), of(false), of(true)].into_iter().flatten().collect();
    MeasuredCosts { tier_costs, reduce_gb_per_s: slowest }
}

fn between<'a>(pairs: impl Iterator<Item = &'a PairFigures>) -> Option<(f64, f64)> {
    let (mut us, mut gb): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
    for pair in pairs {
        us.push(pair.round_trip_us / 2.0);
        gb.extend(pair.gb_per_s);
    }
    us.sort_by(f64::total_cmp);
    gb.sort_by(f64::total_cmp);
    let middle = |all: &[f64]| all.get(all.len() / 2).copied();
    Some((middle(&us)?, middle(&gb).filter(|gb| *gb > 0.0)?))
}

/// The time of an allreduce along a shape, in seconds.
fn predicted(tiers: &Tiers, hosts: &[HostSlots], costs: &MeasuredCosts) -> Option<f64> {
    let sizes: Vec<u32> = hosts.iter().map(|host| host.slots).collect();
    let topology = Topology::of_sizes(&sizes);
    let wiring = Wiring::new(tiers, &topology, None).ok()?;
    let request = request(&topology, Some(wiring), PREDICTED_BYTES);
    Some(simulate(&request, plan::select(&request), &costs.model()?).time_us / 1e6)
}

fn judge(hosts: &[HostSlots], advice: &ShapeAdvice, asked: Option<&Tiers>, costs: &MeasuredCosts) -> Finding {
    let check = "topology";
    let time =
        |tiers: &Tiers| predicted(tiers, hosts, costs).map_or("?".to_string(), |s| format!("{s:.3} s"));
    let asked = match asked.map(|tiers| (tiers, shape::fit(tiers, hosts))) {
        Some((_, Err(why))) => {
            let fact = format!("{why}");
            let so = "a job with this shape does not start";
            let finding = Finding::fail(check, fact, so, "give -H as many slots, or another shape");
            return Finding { costs: Some(costs.clone()), ..finding };
        }
        Some((tiers, Ok(fit))) => Some((tiers, fit)),
        None => None,
    };
    let finding = match (asked, &advice.tiers) {
        (Some((tiers, Fit::Spans { group, each })), Some(best)) => Finding::warn(
            check,
            format!("{tiers} does not fit: groups of {group} ranks go across hosts of {each}"),
            &format!("64 MB take {} by the measured costs, along {best} {}", time(tiers), time(best)),
            &format!("--tiers {best}"),
        ),
        (Some((tiers, Fit::Spans { group, .. })), None) => Finding::warn(
            check,
            format!("{tiers} does not fit: groups of {group} ranks go across hosts; {}", advice.why),
            "what should stay inside a host goes over the network",
            "leave --tiers out",
        ),
        (Some((tiers, Fit::Fits)), Some(best)) if tiers != best => {
            let fact = format!(
                "{tiers} fits the hosts: 64 MB take {} by the measured costs, along {best} {} ({})",
                time(tiers),
                time(best),
                advice.why
            );
            Finding::ok(check, fact)
        }
        (_, None) => Finding::note(check, advice.why.clone()),
        (_, Some(best)) => {
            let fact =
                format!("--tiers {best}: {}; 64 MB take {} by the measured costs", advice.why, time(best));
            Finding::ok(check, fact)
        }
    };
    let finding = match shape::is_in_order(hosts, &advice.racks) {
        true => finding,
        false => {
            let order = advice.racks.concat().join(",");
            let so = "ranks of one group would be spread over several";
            Finding::warn(check, finding.fact, so, &format!("name the hosts in this order: {order}"))
        }
    };
    Finding { costs: Some(costs.clone()), ..finding }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{doctor::finding::Mark, hosts::parse_list};

    fn costs() -> MeasuredCosts {
        MeasuredCosts { tier_costs: vec![(1.0, 5.0), (50.0, 0.024)], reduce_gb_per_s: 5.0 }
    }

    fn judged(list: &str, asked: Option<&str>) -> Finding {
        let hosts = parse_list(list).unwrap();
        let advice = shape::suggest(&hosts, &[]);
        judge(&hosts, &advice, asked.map(|a| a.parse().unwrap()).as_ref(), &costs())
    }

    #[test]
    fn what_bench_prints_becomes_the_cost_that_predicts_it() {
        for (n, gb) in [(2, 3.0), (4, 6.0)] {
            let request = request(&Topology::one_host(n), None, INSIDE_BYTES);
            let tier = TierCost { latency_us: 2.0, gbytes_per_s: gb };
            let model = CostModel { tiers: vec![tier], reduce_gbytes_per_s: gb };
            let us = simulate(&request, plan::select(&request), &model).time_us;
            let text = format!(
                "{{\"op\":\"barrier\",\"median_us\":2.0}}\nnoise\n{{\"op\":\"allreduce\",\"median_us\":{us}}}\n"
            );
            let cost = cost_of_rows(&text, n).unwrap();
            assert!((cost.gbytes_per_s - gb).abs() < 1e-6 * gb && cost.latency_us == 2.0, "{n}: {cost:?}");
        }
        assert_eq!(cost_of_rows("{}\n", 2), None);
    }

    #[test]
    fn shapes_are_compared_by_the_measured_costs() {
        let finding = judged("a:4,b:4,c:4", None);
        assert_eq!(finding.mark, Mark::Ok);
        assert!(finding.fact.starts_with("--tiers 4x3: "), "{}", finding.fact);
        assert_eq!(finding.costs, Some(costs()));
        let finding = judged("a:4,b:4,c:4", Some("6x2"));
        assert_eq!((finding.mark, finding.action.as_deref()), (Mark::Warn, Some("--tiers 4x3")));
        assert_eq!(finding.fact, "6x2 does not fit: groups of 6 ranks go across hosts of 4");
        let finding = judged("a:4,b:4,c:4", Some("4x4"));
        assert_eq!(
            (finding.mark, finding.fact.as_str()),
            (Mark::Fail, "shape 4x4 holds 16 ranks, but the world has 12")
        );
        let finding = judged("a:4,b:3", None);
        assert_eq!(finding.mark, Mark::Note);
        let fits = judged("a:4,b:4,c:4", Some("2x2x3"));
        assert!(
            fits.mark == Mark::Ok && fits.fact.starts_with("2x2x3 fits the hosts: 64 MB take "),
            "{}",
            fits.fact
        );
    }

    #[test]
    fn no_shape_is_suggested_where_hosts_were_not_measured() {
        let figures = |a: &str, b: &str, is_measured: bool| {
            let (addresses, interfaces) = (["1.0.0.1".into(), "1.0.0.2".into()], [None, None]);
            let (round_trip_us, gb_per_s) = (100.0, [0.1, 0.1]);
            let measured = PairFigures { addresses, interfaces, round_trip_us, gb_per_s, encrypted: false };
            let hosts = [a.to_string(), b.to_string()];
            Figures { hosts, reached: is_measured, measured: is_measured.then_some(measured) }
        };
        let says = |list: &str, pairs: &[Figures]| {
            unmeasured(&parse_list(list).unwrap(), pairs).map(|finding| (finding.mark, finding.fact))
        };
        let note = |why: &str| Some((Mark::Note, format!("no shape is suggested: {why}")));
        assert_eq!(says("a:4", &[]), None, "one host has no pairs");
        assert_eq!(says("a:4,b:4", &[figures("a", "b", true)]), None);
        assert_eq!(says("a:4,b:4", &[]), note("no two hosts could be measured, see above"));
        let pairs = [figures("a", "b", true), figures("a", "c", false), figures("b", "c", false)];
        assert_eq!(says("a:4,b:4,c:4", &pairs), note("a and c could not be measured, see above"));
    }

    #[test]
    fn shapes_take_the_longer_the_more_they_send() {
        let hosts = parse_list("a:4,b:4,c:4").unwrap();
        let time = |shape: &str| predicted(&shape.parse().unwrap(), &hosts, &costs()).unwrap();
        let times = ["4x3", "2x6", "12", "6x2", "3x4"].map(time);
        assert!(times.windows(2).all(|w| w[0] < w[1]), "{times:?}");
        // 1.333 of 64 MiB at 24 MB/s, and a little inside the hosts.
        let line = 4.0 / 3.0 * (64 << 20) as f64 / 0.024e9;
        assert!(times[0] > line && times[0] < 1.1 * line, "{} {line}", times[0]);
    }
}
