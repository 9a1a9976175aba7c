//! Curves as SVG: what a run did, to look at.

use std::fmt::Write;

/// One curve: what it is called and its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve<'a> {
    pub name: &'a str,
    pub points: &'a [(f64, f64)],
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const MARGIN: f64 = 48.0;
const COLOURS: [&str; 4] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"];

/// A picture with an axis below and, for each curve, its own scale: losses and accuracies hardly share one.
pub fn svg(title: &str, below: &str, curves: &[Curve<'_>]) -> String {
    let xs = || curves.iter().flat_map(|c| c.points).map(|p| p.0);
    let (left, right) = range(xs());
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n\
         <text x=\"{MARGIN}\" y=\"20\" font-size=\"14\">{}</text>\n\
         <path d=\"M{MARGIN},{MARGIN} V{} H{}\" fill=\"none\" stroke=\"black\"/>\n",
        escaped(title),
        HEIGHT - MARGIN,
        WIDTH - MARGIN,
    );
    let label = |out: &mut String, x: f64, y: f64, anchor: &str, text: &str| {
        let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\">{}</text>", escaped(text));
    };
    label(&mut out, MARGIN, HEIGHT - MARGIN + 16.0, "start", &short(left));
    label(&mut out, WIDTH - MARGIN, HEIGHT - MARGIN + 16.0, "end", &short(right));
    label(&mut out, WIDTH / 2.0, HEIGHT - MARGIN + 32.0, "middle", below);
    for (i, curve) in curves.iter().enumerate() {
        let colour = COLOURS[i % COLOURS.len()];
        let finite = || curve.points.iter().filter(|p| p.1.is_finite());
        let (low, high) = range(finite().map(|p| p.1));
        let place = |v: f64, from: f64, to: f64, begin: f64, end: f64| {
            begin + (v - from) / (to - from) * (end - begin)
        };
        let points: Vec<String> = finite()
            .map(|&(x, y)| {
                let x = place(x, left, right, MARGIN, WIDTH - MARGIN);
                let y = place(y, low, high, HEIGHT - MARGIN, MARGIN);
                format!("{x:.1},{y:.1}")
            })
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>",
            points.join(" ")
        );
        let text = format!("{}: {} to {}", curve.name, short(low), short(high));
        let y = MARGIN + 14.0 * i as f64;
        let _ = writeln!(
            out,
            "<text x=\"{}\" y=\"{y}\" text-anchor=\"end\" fill=\"{colour}\">{}</text>",
            WIDTH - MARGIN,
            escaped(&text)
        );
    }
    out.push_str("</svg>\n");
    out
}

/// The least and the largest, never the same.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    match (low.is_finite(), low < high) {
        (false, _) => (0.0, 1.0),
        (true, true) => (low, high),
        (true, false) => (low, low + 1.0),
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_fill_the_picture_and_nonsense_does_no_harm() {
        let loss = Curve { name: "loss", points: &[(0.0, 2.0), (10.0, f64::NAN), (20.0, 1.0)] };
        let flat = Curve { name: "a<b", points: &[(0.0, 5.0)] };
        let text = svg("t", "step", &[loss, flat, Curve { name: "none", points: &[] }]);
        assert!(text.contains("points=\"48.0,48.0 592.0,272.0\""), "{text}");
        assert!(text.contains("a&lt;b: 5 to 6") && !text.contains("NaN"), "{text}");
        assert_eq!(text.matches("<polyline").count(), 3);
    }
}
