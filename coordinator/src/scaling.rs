//! From workers that a plan wants to workers that there are: decided by `feedline_planner::plan::scale`, done by a
//! [`Scaler`].

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use feedline_data::ids::Millis;
use feedline_planner::observe::ResourceNeeds;
use feedline_planner::plan::{ScaleHistory, ScaleSettings};
use metrics::gauge;

use crate::metrics::SCALED_WORKERS;

#[cfg(test)]
mod tests;

/// Starts workers and lets them go. Without one, wanted workers are a metric only.
#[async_trait]
pub trait Scaler: Debug + Send + Sync {
    /// Workers that are there or on their way. Those that leave do not count.
    fn present(&self) -> u32;

    /// Brings them to `wanted`: returns once that is under way. Workers that go serve what they hold first, so nothing is
    /// lost or made twice. Asked again at the next plan, whatever the answer.
    ///
    /// # Errors
    /// One sentence where workers cannot be started or reached.
    async fn scale(&self, wanted: u32) -> Result<(), String>;
}

/// A scaler and when to ask it.
#[derive(Debug)]
pub(crate) struct ScalingPolicy {
    settings: ScaleSettings,
    scaler: Arc<dyn Scaler>,
    scaling: ScaleHistory,
    /// What was said last.
    said: String,
}

impl ScalingPolicy {
    pub(crate) fn new(settings: ScaleSettings, scaler: Arc<dyn Scaler>) -> Self {
        Self { settings, scaler, scaling: ScaleHistory::default(), said: String::new() }
    }

    /// Decides, and has it done.
    pub(crate) async fn follow(&mut self, now: Millis, needs: ResourceNeeds) {
        let present = self.scaler.present();
        let decision = self.scaling.decide(&self.settings, &needs.input(now, present));
        gauge!(SCALED_WORKERS).set(f64::from(decision.wanted));
        if decision.wanted == present {
            let why = if needs.is_known { &decision.why } else { "what a job needs is not known yet" };
            self.say(format!("no change: {why}"), false);
            return;
        }
        let wanted = decision.wanted;
        self.say(format!("workers: from {present} to {wanted}, since {}", decision.why), true);
        if let Err(sentence) = self.scaler.scale(decision.wanted).await {
            tracing::warn!("the number of workers could not be changed: {sentence}");
        }
    }

    /// What was decided last, and why: one sentence.
    pub(crate) fn said(&self) -> Option<String> {
        (!self.said.is_empty()).then(|| self.said.clone())
    }

    /// Says each thing once.
    fn say(&mut self, sentence: String, is_news: bool) {
        if sentence == self.said {
            return;
        }
        if is_news {
            tracing::info!("{sentence}");
        } else {
            tracing::debug!("{sentence}");
        }
        self.said = sentence;
    }
}
