//! Plots curves as SVG. Each curve has its own panel and scale, because losses and accuracies differ in range.

use plotters::{coord::Shift, prelude::*};
use std::{error::Error, ops::Range, path::Path};

/// One curve: what it is called and its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve<'a> {
    pub name: &'a str,
    pub points: &'a [(f64, f64)],
}

const WIDTH: u32 = 720;
const PANEL: u32 = 240;
const TITLE: u32 = 40;
const COLOURS: [RGBColor; 4] =
    [RGBColor(31, 119, 180), RGBColor(214, 39, 40), RGBColor(44, 160, 44), RGBColor(148, 103, 189)];

/// Writes the picture; `below` is what the points go along.
pub fn draw(file: &Path, title: &str, below: &str, curves: &[Curve<'_>]) -> Result<(), Box<dyn Error>> {
    std::fs::write(file, svg(title, below, curves)?)?;
    Ok(())
}

fn svg(title: &str, below: &str, curves: &[Curve<'_>]) -> Result<String, Box<dyn Error>> {
    let mut picture = String::new();
    {
        let size = (WIDTH, TITLE + PANEL * curves.len() as u32);
        let root = SVGBackend::with_string(&mut picture, size).into_drawing_area();
        root.fill(&WHITE)?;
        let panels = root.titled(title, ("sans-serif", 18))?.split_evenly((curves.len(), 1));
        for ((panel, curve), colour) in panels.iter().zip(curves).zip(COLOURS.iter().cycle()) {
            draw_panel(panel, below, curve, colour)?;
        }
        root.present()?;
    }
    Ok(picture)
}

fn draw_panel(
    panel: &DrawingArea<SVGBackend<'_>, Shift>,
    below: &str,
    curve: &Curve<'_>,
    colour: &RGBColor,
) -> Result<(), Box<dyn Error>> {
    let finite = || curve.points.iter().copied().filter(|p| p.0.is_finite() && p.1.is_finite());
    let (across, up) = (range(finite().map(|p| p.0)), range(finite().map(|p| p.1)));
    let mut chart = ChartBuilder::on(panel)
        .margin(8)
        .margin_right(24)
        .x_label_area_size(40)
        .y_label_area_size(72)
        .build_cartesian_2d(across, up)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_labels(7)
        .y_labels(6)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .x_desc(below)
        .y_desc(curve.name)
        .draw()?;
    chart.draw_series(LineSeries::new(finite(), colour))?;
    Ok(())
}

/// From the least to the largest, never empty.
fn range(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
    match (low.is_finite(), low < high) {
        (false, _) => 0.0..1.0,
        (true, true) => low..high,
        (true, false) => low..low + 1.0,
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_have_axes_of_their_own_and_nonsense_does_no_harm() {
        let loss = Curve { name: "loss", points: &[(0.0, 2.0), (10.0, f64::NAN), (20.0, 1.0)] };
        let flat = Curve { name: "a<b", points: &[(0.0, 5.0)] };
        let none = Curve { name: "none", points: &[] };
        let text = svg("t", "step", &[loss, flat, none]).expect("a picture");
        assert!(text.contains("a&lt;b") && !text.contains("NaN"), "{text}");
        assert_eq!(text.matches("step").count(), 3, "each says what its points go along");
        assert!(text.trim_end().ends_with("</svg>"));
    }
}
