//! Flags of a coordinator that scales the workers of pools.

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Args, ValueEnum};
use feedline_coordinator::PoolLimits;
use feedline_kubernetes::{KubernetesScalerSettings, PoolTarget, VictimChoice, WorkloadKind};

use crate::failure::Failure;

#[cfg(test)]
mod tests;

/// Default of --shrink-after.
const DEFAULT_SHRINK_AFTER: Duration = Duration::from_secs(300);
/// Maximum number of workers of a pool.
const MAX_POOL_WORKERS: u32 = 10_000;

/// Maximum length of the name of a pool.
const MAX_POOL_LENGTH: usize = 63;

/// Scaling of the workers of pools.
#[derive(Args, Debug, Clone, Default)]
#[command(next_help_heading = "Scaling")]
pub(crate) struct ScalingArgs {
    /// Set the number of workers of each --scale-pool to the number that the jobs need [default: the number of workers does
    /// not change].
    #[arg(long, value_enum, value_name = "SCALER")]
    pub(crate) scaler: Option<ScalerArg>,
    /// Pool of workers, the Kubernetes object whose pods they are, and the smallest and the largest number of workers, such
    /// as default=deployment/feedline-worker:1..10 or spot=statefulset/spot:2..50; the flag can be repeated. The workers
    /// of the pool have the same --pool.
    #[arg(long, value_name = "POOL=KIND/OBJECT:MIN..MAX", value_parser = parse_pool_target)]
    pub(crate) scale_pool: Vec<PoolTarget>,
    /// Which workers stop first when a pool shrinks [default: kubernetes].
    #[arg(long, value_enum, value_name = "VICTIMS")]
    pub(crate) scale_victims: Option<ScaleVictimsArg>,
    /// Time for which a smaller number of workers must be sufficient before surplus workers stop [default: 5m].
    #[arg(long, value_name = "TIME", value_parser = crate::size::parse_duration)]
    pub(crate) shrink_after: Option<Duration>,
    /// Address on which to serve KEDA, such as 0.0.0.0:7072. With TLS, KEDA needs a certificate from an authority in
    /// --tls-ca.
    #[arg(long, value_name = "ADDR")]
    pub(crate) scaler_listen: Option<String>,
    /// Namespace of the Kubernetes objects [default: the namespace of the coordinator's service account].
    #[arg(long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
}

/// Who changes the number of workers.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScalerArg {
    /// The leading coordinator, through the API server of Kubernetes.
    Kubernetes,
    /// KEDA, which asks the coordinators at --scaler-listen.
    Keda,
}

/// Which workers stop first.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScaleVictimsArg {
    /// Those that Kubernetes chooses: the newest pods of a Deployment, or the pods with the highest numbers of a
    /// StatefulSet.
    Kubernetes,
    /// Those with the smallest caches. The coordinator annotates their pods, which must belong to a Deployment.
    Planner,
}

/// Checked settings of scaling.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScalingPlan {
    /// The scaler and its settings.
    pub(crate) scaler: ScalerChoice,
    /// Time for which a smaller number of workers must be sufficient.
    pub(crate) shrink_after: Duration,
}

/// A scaler and its settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ScalerChoice {
    /// The leader changes the number of pods.
    Kubernetes(KubernetesScalerSettings),
    /// KEDA changes the number of pods.
    Keda {
        /// The pools.
        pools: Vec<PoolLimits>,
        /// The address for KEDA.
        listen: String,
    },
}

impl ScalingArgs {
    /// Checks the flags together; `None` without a scaler.
    pub(crate) fn plan(&self) -> Result<Option<ScalingPlan>, Failure> {
        if let Some(sentence) = self.conflict() {
            return Err(Failure::invalid_usage(sentence));
        }
        let pools = self.scale_pool.clone();
        let scaler = match (self.scaler, &self.scaler_listen) {
            (None, _) => return Ok(None),
            (Some(ScalerArg::Keda), listen) => ScalerChoice::Keda {
                pools: pools.into_iter().map(|pool| pool.limits).collect(),
                listen: listen.clone().unwrap_or_default(),
            },
            (Some(ScalerArg::Kubernetes), _) => ScalerChoice::Kubernetes(KubernetesScalerSettings {
                namespace: self.namespace.clone(),
                pools,
                victims: match self.scale_victims {
                    Some(ScaleVictimsArg::Planner) => VictimChoice::Planner,
                    Some(ScaleVictimsArg::Kubernetes) | None => VictimChoice::Kubernetes,
                },
            }),
        };
        Ok(Some(ScalingPlan { scaler, shrink_after: self.shrink_after.unwrap_or(DEFAULT_SHRINK_AFTER) }))
    }

    /// Returns the first conflict of two flags.
    fn conflict(&self) -> Option<String> {
        let Some(scaler) = self.scaler else {
            let given = [
                ("--scale-pool", !self.scale_pool.is_empty()),
                ("--scale-victims", self.scale_victims.is_some()),
                ("--shrink-after", self.shrink_after.is_some()),
                ("--scaler-listen", self.scaler_listen.is_some()),
                ("--namespace", self.namespace.is_some()),
            ];
            let (flag, _) = given.into_iter().find(|(_, is_given)| *is_given)?;
            return Some(format!(
                "{flag} has no effect without --scaler: remove it, or pass --scaler kubernetes or --scaler keda"
            ));
        };
        self.pool_conflict().or_else(|| match scaler {
            ScalerArg::Kubernetes => self.kubernetes_conflict(),
            ScalerArg::Keda => self.keda_conflict(),
        })
    }

    fn pool_conflict(&self) -> Option<String> {
        if self.scale_pool.is_empty() {
            return Some(
                "--scaler has no pool: pass --scale-pool, such as default=deployment/feedline-worker:1..10"
                    .to_owned(),
            );
        }
        let (mut names, mut objects) = (BTreeSet::new(), BTreeSet::new());
        self.scale_pool.iter().find_map(|PoolTarget { limits, kind, object }| {
            let kind = kind_name(*kind);
            if !names.insert(&limits.pool) {
                return Some(format!(
                    "--scale-pool contains the pool {} twice: remove one of them",
                    limits.pool
                ));
            }
            let is_new = objects.insert((kind, object));
            (!is_new).then(|| {
                format!("--scale-pool contains {kind}/{object} for two pools: give each pool its own object")
            })
        })
    }

    fn kubernetes_conflict(&self) -> Option<String> {
        if self.scaler_listen.is_some() {
            return Some(
                "--scaler-listen has no effect with --scaler kubernetes: it is the address for KEDA; remove it".to_owned(),
            );
        }
        let planner_chooses = self.scale_victims == Some(ScaleVictimsArg::Planner);
        let is_ordered = |pool: &&PoolTarget| planner_chooses && pool.kind == WorkloadKind::StatefulSet;
        self.scale_pool.iter().find(is_ordered).map(|pool| {
            format!(
                "--scale-victims planner cannot be used with statefulset/{}: a StatefulSet always stops the pods with the highest numbers; pass --scale-victims kubernetes",
                pool.object
            )
        })
    }

    fn keda_conflict(&self) -> Option<String> {
        let sentence = if self.scaler_listen.is_none() {
            "--scaler keda needs an address for KEDA: pass --scaler-listen, such as 0.0.0.0:7072"
        } else if self.scale_victims.is_some() {
            "--scale-victims has no effect with --scaler keda, which cannot choose workers: remove it"
        } else if self.namespace.is_some() {
            "--namespace has no effect with --scaler keda: the namespace is that of the ScaledObject; remove it"
        } else {
            return None;
        };
        Some(sentence.to_owned())
    }
}

fn kind_name(kind: WorkloadKind) -> &'static str {
    match kind {
        WorkloadKind::Deployment => "deployment",
        WorkloadKind::StatefulSet => "statefulset",
    }
}

/// Parses a pool such as `default=deployment/feedline-worker:1..10`.
fn parse_pool_target(text: &str) -> Result<PoolTarget, String> {
    let parts = text.split_once('=').and_then(|(pool, rest)| {
        let (kind, rest) = rest.split_once('/')?;
        let (object, bounds) = rest.split_once(':')?;
        Some((pool, kind, object, bounds))
    });
    let Some((pool, kind, object, bounds)) = parts else {
        return Err(format!(
            "invalid pool `{text}`: expected POOL=KIND/OBJECT:MIN..MAX, such as default=deployment/feedline-worker:1..10"
        ));
    };
    if pool.is_empty() {
        return Err(format!("invalid pool `{text}`: the name before = is empty"));
    }
    let kind = match kind {
        "deployment" => WorkloadKind::Deployment,
        "statefulset" => WorkloadKind::StatefulSet,
        _ => return Err(format!("invalid kind `{kind}`: expected deployment or statefulset")),
    };
    if !is_object_name(object) {
        return Err(format!(
            "invalid object `{object}`: expected the name of a {}, such as feedline-worker",
            kind_name(kind)
        ));
    }
    let (min_workers, max_workers) = parse_bounds(bounds)?;
    let limits = PoolLimits { pool: parse_pool(pool)?, min_workers, max_workers };
    Ok(PoolTarget { limits, kind, object: object.to_owned() })
}

/// Parses the name of a pool, which is a DNS label because it is part of the names of Kubernetes objects.
pub(super) fn parse_pool(text: &str) -> Result<String, String> {
    let is_allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let is_label = text.len() <= MAX_POOL_LENGTH
        && text.chars().all(is_allowed)
        && !text.starts_with('-')
        && !text.ends_with('-');
    if is_label {
        return Ok(text.to_owned());
    }
    Err(format!(
        "invalid pool `{text}`: expected at most {MAX_POOL_LENGTH} lowercase letters, digits and inner hyphens, such as spot-a"
    ))
}

/// Whether a text can be the name of a Deployment or a StatefulSet: a DNS subdomain.
fn is_object_name(text: &str) -> bool {
    let is_allowed = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-';
    let is_label = |label: &str| {
        !label.is_empty() && label.chars().all(is_allowed) && !label.starts_with('-') && !label.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

fn parse_bounds(text: &str) -> Result<(u32, u32), String> {
    let bounds = text
        .split_once("..")
        .and_then(|(min, max)| Some((min.parse::<u32>().ok()?, max.parse::<u32>().ok()?)));
    match bounds {
        Some((0, _)) => Err(format!(
            "invalid bounds `{text}`: a pool has at least one worker, which measures the demand; pass MIN of at least 1"
        )),
        Some((min, max)) if min <= max && max <= MAX_POOL_WORKERS => Ok((min, max)),
        Some((min, max)) if min > max => {
            Err(format!("invalid bounds `{text}`: MIN {min} is larger than MAX {max}"))
        }
        _ => Err(format!(
            "invalid bounds `{text}`: expected MIN..MAX with numbers from 1 to {MAX_POOL_WORKERS}, such as 1..10"
        )),
    }
}
