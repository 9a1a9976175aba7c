//! Draws time over size as SVG, both axes logarithmic. Pure: text from numbers.

use std::fmt::Write;

/// A named line of (bytes, microseconds).
#[derive(Clone, Debug, PartialEq)]
pub struct PlotLine {
    pub name: String,
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 520.0;
/// Room for the axes and for the names of lines.
const LEFT: f64 = 80.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
/// Told apart by people who see few colours, too; more lines begin again, dashed.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#999999"];

/// From numbers to places along one axis.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>, log: fn(f64) -> f64, from: f64, to: f64) -> Axis {
        let logs = values.filter(|v| *v > 0.0).map(log);
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
        let (low, high) = if low.is_finite() { (low.floor(), high.ceil()) } else { (0.0, 1.0) };
        Axis { low, high: high.max(low + 1.0), from, to }
    }

    fn at(&self, log: f64) -> f64 {
        self.from + (log - self.low) / (self.high - self.low) * (self.to - self.from)
    }

    /// Whole powers, at most about ten of them.
    fn ticks(&self) -> impl Iterator<Item = i32> {
        let step = (((self.high - self.low) / 10.0).ceil() as usize).max(1);
        (self.low as i32..=self.high as i32).step_by(step)
    }
}

/// The picture.
pub fn draw(title: &str, lines: &[PlotLine]) -> String {
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let x = Axis::over(points().map(|p| p.0), f64::log2, LEFT, WIDTH - RIGHT);
    let y = Axis::over(points().map(|p| p.1), f64::log10, HEIGHT - BOTTOM, TOP);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped(title)
    );
    // A String takes everything.
    for power in x.ticks() {
        let at = x.at(f64::from(power));
        let _ = writeln!(
            svg,
            "<path d=\"M{at:.1} {TOP}V{:.1}\" stroke=\"#ddd\"/><text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 18.0,
            size(power)
        );
    }
    for power in y.ticks() {
        let at = y.at(f64::from(power));
        let _ = writeln!(
            svg,
            "<path d=\"M{LEFT} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            time(power)
        );
    }
    for (i, line) in lines.iter().enumerate() {
        let (colour, dash) =
            (COLOURS[i % COLOURS.len()], if i < COLOURS.len() { "" } else { " stroke-dasharray=\"5 3\"" });
        let place = |&(bytes, us): &(f64, f64)| format!("{:.1},{:.1}", x.at(bytes.log2()), y.at(us.log10()));
        let places: Vec<String> = line.points.iter().filter(|p| p.0 > 0.0 && p.1 > 0.0).map(place).collect();
        let (key, name) = (TOP + 18.0 * i as f64, escaped(&line.name));
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>\n\
             <path d=\"M{:.1} {key:.1}h18\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/><text x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            places.join(" "),
            WIDTH - RIGHT + 12.0,
            WIDTH - RIGHT + 36.0,
            key + 4.0,
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">bytes</text>\n</svg>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 12.0
    );
    svg
}

fn size(power: i32) -> String {
    match power {
        30.. => format!("{}G", 1u64 << (power - 30)),
        20.. => format!("{}M", 1u64 << (power - 20)),
        10.. => format!("{}K", 1u64 << (power - 10)),
        0.. => (1u64 << power).to_string(),
        _ => String::new(),
    }
}

fn time(power: i32) -> String {
    match power {
        6.. => format!("{} s", 10f64.powi(power - 6)),
        3.. => format!("{} ms", 10f64.powi(power - 3)),
        _ => format!("{} us", 10f64.powi(power)),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(f64, f64)]) -> PlotLine {
        PlotLine { name: name.to_string(), points: points.to_vec() }
    }

    #[test]
    fn points_are_where_their_logarithms_are() {
        let svg =
            draw("a & b", &[line("ring", &[(4096.0, 100.0), (1048576.0, 10_000.0)]), line("tiers", &[])]);
        // The first point is in the lower left corner, the last in the upper right one.
        assert!(svg.contains("<polyline points=\"80.0,470.0 710.0,40.0\""), "{svg}");
        for text in ["a &amp; b", ">4K<", ">1M<", ">100 us<", ">1 ms<", ">10 ms<", ">ring<", ">tiers<"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn nothing_to_draw_is_a_picture_without_lines() {
        let svg = draw("empty", &[line("none", &[(0.0, 0.0)])]);
        assert!(svg.contains("points=\"\"") && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
