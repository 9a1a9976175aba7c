//! Costs that were measured: the line that `phalanx doctor --topology --json` prints, and a model of it.

use phalanx_collective::plan::simulate::{CostModel, TierCost};
use serde::{Deserialize, Serialize};
use std::{fs, path::Path};

/// What a network costs, as one JSON object has it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredCosts {
    /// Latency in microseconds and gigabytes per second of each tier, that inside a host first.
    pub tier_costs: Vec<(f64, f64)>,
    pub reduce_gb_per_s: f64,
}

impl MeasuredCosts {
    /// The model, where the numbers can be ones of a network.
    pub fn model(&self) -> Option<CostModel> {
        let is_good = |x: f64| x > 0.0 && x.is_finite();
        let tier = |&(latency_us, gbytes_per_s): &(f64, f64)| {
            (latency_us >= 0.0 && latency_us.is_finite() && is_good(gbytes_per_s))
                .then_some(TierCost { latency_us, gbytes_per_s })
        };
        let tiers: Vec<TierCost> = self.tier_costs.iter().map(tier).collect::<Option<_>>()?;
        let model = CostModel { tiers, reduce_gbytes_per_s: self.reduce_gb_per_s };
        (!model.tiers.is_empty() && is_good(self.reduce_gb_per_s)).then_some(model)
    }
}

pub fn read(path: &Path) -> Result<CostModel, String> {
    let text = fs::read_to_string(path).map_err(|why| format!("--costs {}: {why}", path.display()))?;
    found(&text).ok_or_else(|| {
        format!(
            "--costs {}: no line has costs; write the file with phalanx doctor -H HOST:SLOTS,... --topology --json",
            path.display()
        )
    })
}

/// The last costs among the lines of a doctor.
fn found(text: &str) -> Option<CostModel> {
    let costs = |line: &str| serde_json::from_str::<MeasuredCosts>(line).ok()?.model();
    text.lines().rev().find_map(costs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_with_costs_is_found_among_others() {
        let costs = MeasuredCosts { tier_costs: vec![(0.5, 8.0), (42.0, 0.0238)], reduce_gb_per_s: 8.0 };
        let line = serde_json::to_string(&costs).unwrap();
        let model = found(&format!("{{\"check\":\"cores\"}}\n{line}\nnoise\n")).unwrap();
        assert_eq!(model.tiers[1], TierCost { latency_us: 42.0, gbytes_per_s: 0.0238 });
        assert_eq!(model.reduce_gbytes_per_s, 8.0);
        for bad in [
            "{}".to_string(),
            line.replace("0.0238", "0"),
            line.replace("42.0", "-1"),
            r#"{"tier_costs":[],"reduce_gb_per_s":1}"#.to_string(),
        ] {
            assert_eq!(found(&bad), None, "{bad}");
        }
        let error = read(Path::new("/no/such")).unwrap_err();
        assert!(error.starts_with("--costs /no/such: "), "{error}");
    }
}
