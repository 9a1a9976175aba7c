//! What the examples have in common: their own tests are in those files.

use crate::plot;

/// A picture is a file that a browser can open.
#[test]
fn a_picture_is_written() {
    let file = std::env::temp_dir().join(format!("phalanx-picture-{}.svg", std::process::id()));
    let points = [(0.0, 1.0), (1.0, 0.5), (2.0, 0.25)];
    plot::draw(&file, "title", "step", &[plot::Curve { name: "loss", points: &points }])
        .expect("it is drawn");
    let text = std::fs::read_to_string(&file).expect("it is there");
    std::fs::remove_file(&file).expect("it is ours");
    assert!(text.starts_with("<svg") && text.contains("title"), "{text}");
}
