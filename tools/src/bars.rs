//! Progress on a terminal; elsewhere nothing is drawn.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The bars of one run.
pub struct Bars {
    shown: bool,
}

impl Bars {
    /// Of a run whose report is in JSON, or not: then, on a terminal, they are drawn.
    pub fn new(json: bool) -> Self {
        Self { shown: !json && std::io::stderr().is_terminal() }
    }

    /// Counts images that are found.
    pub fn scanning(&self) -> ProgressBar {
        self.draw(ProgressBar::no_length(), "{spinner} looking: {human_pos} images")
    }

    /// Counts bytes of shards that are there already.
    pub fn checking(&self) -> ProgressBar {
        self.draw(ProgressBar::no_length(), "{spinner} checking what is there: {binary_bytes}, {binary_bytes_per_sec}")
    }

    /// Over the bytes of images.
    pub fn packing(&self, bytes: u64) -> ProgressBar {
        let template = "packing {wide_bar} {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left";
        self.draw(ProgressBar::new(bytes), template)
    }

    /// Over the bytes of shards; the message is the rate of JPEGs.
    pub fn optimizing(&self, bytes: u64) -> ProgressBar {
        let template = "optimizing {wide_bar} {binary_bytes} of {binary_total_bytes}, {msg} JPEGs/s, {eta} left";
        self.draw(ProgressBar::new(bytes), template)
    }

    fn draw(&self, bar: ProgressBar, template: &str) -> ProgressBar {
        if !self.shown {
            bar.set_draw_target(ProgressDrawTarget::hidden());
            return bar;
        }
        bar.set_style(ProgressStyle::with_template(template).expect("the template is well-formed"));
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }
}
