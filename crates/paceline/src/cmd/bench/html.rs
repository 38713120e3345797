//! [`Page`]: a report as one HTML file that loads nothing, with its plots drawn in SVG.

use super::table::{Table, figure};
use anyhow::Context;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

const STYLE: &str = "\
:root { color-scheme: light dark; --ink: light-dark(#1f2430, #e3e6ec); --dim: light-dark(#d5d9e0, #3a404c);
  --soft: light-dark(#6b7280, #9aa1ad); --c0: #c2574b; --c1: #d39a2d; --c2: #4c8fc9; --c3: #3d9a6a; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: light-dark(#fff, #15181e);
  max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 2rem 0 .3rem; }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums; }
td, th { padding: .15rem .7rem; text-align: right; border-bottom: 1px solid var(--dim); font-weight: normal; }
th { color: var(--soft); } td:first-child { text-align: left; }
svg { width: 100%; height: auto; font: 12px system-ui, sans-serif; }
text { fill: var(--soft); } .grid { stroke: var(--dim); } polyline { fill: none; stroke-width: 1.8; }
.l0 { stroke: var(--c0); } .l1 { stroke: var(--c1); } .l2 { stroke: var(--c2); } .l3 { stroke: var(--c3); }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); } .f2 { fill: var(--c2); } .f3 { fill: var(--c3); }
.wait { fill: var(--dim); } .read { fill: var(--c1); } .write { fill: var(--c2); } .waste { fill: var(--c0); opacity: .45; }";

/// The file of a report that is to be. What it holds stays until then; a new one that gets no
/// report is taken away again.
pub struct Target {
    path: PathBuf,
    file: File,
    is_blank: bool,
}

impl Target {
    /// Opens the file before there is anything to write: that it cannot be written should not need
    /// a measurement.
    pub fn open(path: &Path) -> anyhow::Result<Target> {
        let context = || format!("--html {}", path.display());
        let is_blank = !path.exists();
        let file = File::options().write(true).create(true).truncate(false).open(path);
        Ok(Target { path: path.to_owned(), file: file.with_context(context)?, is_blank })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.is_blank {
            // Whoever sees an empty file can tell.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// A report.
pub struct Page {
    title: String,
    body: String,
}

impl Page {
    pub fn new(title: &str) -> Page {
        Page { title: escape(title), body: String::new() }
    }

    pub fn text(&mut self, text: &str) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(self.body, "<p>{}</p>", escape(text));
    }

    pub fn table(&mut self, table: &Table) {
        let row = |tag: &str, cells: &[String]| {
            let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell)));
            format!("<tr>{}</tr>\n", cells.collect::<String>())
        };
        self.body += "<table>\n";
        if table.head.iter().any(|cell| !cell.is_empty()) {
            self.body += &row("th", &table.head);
        }
        table.rows.iter().for_each(|cells| self.body += &row("td", cells));
        self.body += "</table>\n";
    }

    pub fn plot(&mut self, title: &str, plot: &Plot) {
        let _ = writeln!(self.body, "<h2>{}</h2>\n{}", escape(title), plot.svg());
    }

    /// Writes the report in place of what the file holds.
    pub fn write(&self, mut target: Target) -> anyhow::Result<()> {
        let Page { title, body } = self;
        let page = format!(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
             <style>\n{STYLE}\n</style>\n<h1>{title}</h1>\n{body}</html>\n"
        );
        let file = &mut target.file;
        file.set_len(0).and_then(|()| file.write_all(page.as_bytes())).context("--html")?;
        target.is_blank = false;
        Ok(())
    }
}

/// One direction of a plot.
pub struct Axis {
    pub label: &'static str,
    pub low: f64,
    pub high: f64,
    /// Equal ratios are equal distances; `low` is above 0.
    pub log: bool,
}

impl Axis {
    /// From 0 to `high`.
    pub fn to(label: &'static str, high: f64) -> Axis {
        Axis { label, low: 0.0, high: if high > 0.0 { high } else { 1.0 }, log: false }
    }

    /// The decades that hold all values.
    pub fn decades(label: &'static str, values: impl Iterator<Item = f64>) -> Axis {
        let (mut low, mut high) = (f64::MAX, 1e-2f64);
        values.for_each(|value| (low, high) = (low.min(value.max(1e-2)), high.max(value)));
        let low = 10f64.powf(low.min(high).log10().floor());
        let high = 10f64.powf(high.log10().ceil()).max(low * 10.0);
        Axis { label, low, high, log: true }
    }

    /// Where a value lies, from 0 to 1.
    fn place(&self, value: f64) -> f64 {
        let place = match self.log {
            true => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
            false => (value - self.low) / (self.high - self.low),
        };
        place.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let n_decades = (self.high / self.low).log10().round() as i32;
            return (0..=n_decades).map(|i| self.low * 10f64.powi(i)).collect();
        }
        // The roundest steps that give five to ten ticks.
        let decade = 10f64.powf(((self.high - self.low) / 5.0).log10().floor());
        let step = [5.0, 2.0, 1.0].map(|step| step * decade);
        let step = step.into_iter().find(|step| (self.high - self.low) / step >= 4.0);
        let step = step.unwrap_or(decade);
        let n = ((self.high - self.low) / step + 1e-9) as usize;
        (0..=n).map(|i| self.low + i as f64 * step).collect()
    }
}

/// Marks between two axes.
pub struct Plot {
    x: Axis,
    y: Axis,
    height: f64,
    marks: String,
    legend: Vec<(&'static str, String)>,
}

impl Plot {
    const WIDTH: f64 = 900.0;
    const LEFT: f64 = 52.0;
    const BELOW: f64 = 40.0;
    const ABOVE: f64 = 24.0;

    /// `height` is that of the inner part, of 900 units of width.
    pub fn new(x: Axis, y: Axis, height: f64) -> Plot {
        Plot { x, y, height, marks: String::new(), legend: Vec::new() }
    }

    fn x(&self, value: f64) -> f64 {
        Plot::LEFT + self.x.place(value) * (Plot::WIDTH - Plot::LEFT - 12.0)
    }

    fn y(&self, value: f64) -> f64 {
        Plot::ABOVE + (1.0 - self.y.place(value)) * self.height
    }

    /// Names a class of marks: one of `f0` to `f3`, or what they stand for.
    pub fn name(&mut self, class: &'static str, label: &str) {
        self.legend.push((class, escape(label)));
    }

    /// A line through points, in colour `i` of four.
    pub fn line(&mut self, i: usize, points: impl Iterator<Item = (f64, f64)>) {
        let points: Vec<String> =
            points.map(|(x, y)| format!("{:.1},{:.1}", self.x(x), self.y(y))).collect();
        let _ = writeln!(
            self.marks,
            "<polyline class=\"l{}\" points=\"{}\"/>",
            i % 4,
            points.join(" ")
        );
    }

    /// The share of the values that are at most so large, in colour `i`; y goes to 1.
    pub fn shares(&mut self, i: usize, mut values: Vec<f64>) {
        values.sort_by(f64::total_cmp);
        // More points than that nobody sees.
        let (n, step) = (values.len(), values.len().div_ceil(400).max(1));
        let point = |i: usize| (values[i], (i + 1) as f64 / n as f64);
        let places = (0..n).step_by(step).chain(n.checked_sub(1));
        self.line(i, places.map(point));
    }

    /// A bar from one x to another, in the lane from `lane` to `lane + 1` of y.
    pub fn bar(&mut self, class: &str, lane: f64, from: f64, to: f64) {
        let (left, right) = (self.x(from), self.x(to));
        let (top, bottom) = (self.y(lane + 1.0), self.y(lane));
        let gap = ((bottom - top) * 0.12).min(1.0);
        let _ = writeln!(
            self.marks,
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{:.2}\" width=\"{:.1}\" height=\"{:.2}\"/>",
            top + gap,
            (right - left).max(0.3),
            bottom - top - 2.0 * gap,
        );
    }

    fn svg(&self) -> String {
        let full = Plot::ABOVE + self.height + Plot::BELOW;
        let mut svg = format!("<svg viewBox=\"0 0 {} {full}\">\n", Plot::WIDTH);
        let floor = Plot::ABOVE + self.height;
        for tick in self.x.ticks() {
            let x = self.x(tick);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{}\" y2=\"{floor}\"/>\
                 <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                Plot::ABOVE,
                floor + 16.0,
                tick_label(tick)
            );
        }
        for tick in self.y.ticks() {
            let y = self.y(tick);
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                Plot::LEFT,
                Plot::WIDTH - 12.0,
                Plot::LEFT - 6.0,
                y + 4.0,
                tick_label(tick)
            );
        }
        svg += &self.marks;
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text><text x=\"2\" y=\"14\">{}</text>",
            Plot::WIDTH - 12.0,
            floor + 34.0,
            escape(self.x.label),
            escape(self.y.label)
        );
        let mut x = Plot::LEFT + 150.0;
        for (class, label) in &self.legend {
            let _ = writeln!(
                svg,
                "<rect class=\"{class}\" x=\"{x}\" y=\"5\" width=\"10\" height=\"10\"/>\
                 <text x=\"{}\" y=\"14\">{label}</text>",
                x + 15.0
            );
            x += 40.0 + 6.8 * label.chars().count() as f64;
        }
        svg + "</svg>"
    }
}

fn tick_label(value: f64) -> String {
    match value.fract() == 0.0 {
        true => value.to_string(),
        false => figure(value),
    }
}

fn escape(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(Axis::to("", 10.0).ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Axis::to("", 37.0).ticks(), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0]);
        let ticks = Axis::decades("", [3.0, 900.0].into_iter()).ticks();
        assert_eq!(ticks, [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(Axis::decades("", [10.0].into_iter()).ticks(), [10.0, 100.0]);
        assert_eq!(Axis::decades("", [].into_iter()).ticks().len(), 2);
    }

    #[test]
    fn what_others_wrote_is_no_markup() {
        let mut page = Page::new("<b>");
        page.text("a & \"b\" <script>");
        page.table(&Table { head: vec!["<i>".to_owned()], rows: vec![vec!["<u>".to_owned()]] });
        assert_eq!(page.title, "&lt;b&gt;");
        assert!(page.body.contains("a &amp; &quot;b&quot; &lt;script&gt;"), "{}", page.body);
        assert!(
            page.body.contains("<th>&lt;i&gt;</th>") && page.body.contains("<td>&lt;u&gt;</td>")
        );
    }

    #[test]
    fn marks_stay_inside_the_plot() {
        let mut plot = Plot::new(Axis::to("s", 2.0), Axis::to("n", 4.0), 100.0);
        plot.bar("work", 0.0, 1.0, 99.0);
        plot.line(0, [(-1.0, 9.0)].into_iter());
        assert!(plot.marks.contains("x=\"470.0\"") && plot.marks.contains("width=\"418.0\""));
        assert!(plot.marks.contains("points=\"52.0,24.0\""), "{}", plot.marks);
        plot.shares(1, Vec::new());
    }
}
