//! What hooks decide. Python's hooks ask these and do what they say.

use phalanx_train::session::{
    Better, EarlyStopping, Hook, HookAction, Logging, NanLoss, Period, Profiler, SaveCheckpoints,
    StepCounter, StepInfo, StopAtStep, StopAtTime, Summaries,
};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Decides for one hook of one session.
#[pyclass(frozen, module = "phalanx._phalanx")]
pub struct SessionHook {
    /// A lock because Python may ask from several threads; held for moments.
    hook: Mutex<Box<dyn Hook>>,
}

impl fmt::Debug for SessionHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionHook({})", self.lock().name())
    }
}

/// What is to happen, a text (why, a line, a tag), and a number.
type Wanted = (&'static str, String, f64);

fn given(actions: Vec<HookAction>) -> Vec<Wanted> {
    let each = actions.into_iter().map(|action| match action {
        HookAction::Stop { why } => ("stop", why, 0.0),
        HookAction::Fail { why } => ("fail", why, 0.0),
        HookAction::Save => ("save", String::new(), 0.0),
        HookAction::Summary { tag, value } => ("summary", tag, value),
        HookAction::Log { line } => ("log", line, 0.0),
        HookAction::Profile { on } => ("profile", String::new(), f64::from(u8::from(on))),
    });
    each.collect()
}

fn made(hook: impl Hook + 'static) -> SessionHook {
    SessionHook { hook: Mutex::new(Box::new(hook)) }
}

fn period(steps: Option<u64>, secs: Option<f64>) -> PyResult<Period> {
    match (steps, secs) {
        (Some(0), _) => Err(PyValueError::new_err("a number of steps must be 1 or more, not 0")),
        (Some(steps), None) => Ok(Period::Steps(steps)),
        (None, Some(secs)) if secs > 0.0 => {
            Ok(Period::Time(Duration::try_from_secs_f64(secs).unwrap_or(Duration::MAX)))
        }
        (None, Some(secs)) => {
            Err(PyValueError::new_err(format!("a number of seconds must be above 0, not {secs}")))
        }
        _ => Err(PyValueError::new_err("give a number of steps or a number of seconds, and not both")),
    }
}

impl SessionHook {
    fn lock(&self) -> MutexGuard<'_, Box<dyn Hook>> {
        self.hook.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl SessionHook {
    #[staticmethod]
    #[pyo3(signature = (num_steps, last_step))]
    fn stop_at_step(num_steps: Option<u64>, last_step: Option<u64>) -> PyResult<SessionHook> {
        match (num_steps, last_step) {
            (Some(n), None) => Ok(made(StopAtStep::after(n))),
            (None, Some(last)) => Ok(made(StopAtStep::at(last))),
            _ => Err(PyValueError::new_err("give num_steps or last_step, and not both")),
        }
    }

    #[staticmethod]
    fn stop_at_time(seconds: f64) -> SessionHook {
        made(StopAtTime::seconds(seconds))
    }

    #[staticmethod]
    #[pyo3(signature = (steps, secs))]
    fn save(steps: Option<u64>, secs: Option<f64>) -> PyResult<SessionHook> {
        Ok(made(SaveCheckpoints::new(period(steps, secs)?)))
    }

    #[staticmethod]
    #[pyo3(signature = (names, steps, secs))]
    fn logging(names: Option<Vec<String>>, steps: Option<u64>, secs: Option<f64>) -> PyResult<SessionHook> {
        let period = period(steps, secs)?;
        Ok(names.map_or_else(|| made(Logging::new(period)), |names| made(Logging::of(period, names))))
    }

    #[staticmethod]
    #[pyo3(signature = (names, steps, secs))]
    fn summaries(names: Option<Vec<String>>, steps: Option<u64>, secs: Option<f64>) -> PyResult<SessionHook> {
        let period = period(steps, secs)?;
        Ok(names.map_or_else(|| made(Summaries::new(period)), |names| made(Summaries::of(period, names))))
    }

    #[staticmethod]
    #[pyo3(signature = (steps, secs))]
    fn step_counter(steps: Option<u64>, secs: Option<f64>) -> PyResult<SessionHook> {
        Ok(made(StepCounter::new(period(steps, secs)?)))
    }

    #[staticmethod]
    fn nan(loss: String, fails: bool) -> SessionHook {
        made(NanLoss::new(loss, fails))
    }

    #[staticmethod]
    #[pyo3(signature = (range, every))]
    fn profiler(range: Option<(u64, u64)>, every: Option<u64>) -> PyResult<SessionHook> {
        match (range, every) {
            (Some((begin, end)), None) if begin < end => Ok(made(Profiler::range(begin..end))),
            (Some((begin, end)), None) => {
                Err(PyValueError::new_err(format!("the range {begin}..{end} has no steps")))
            }
            (None, Some(every)) if every > 0 => Ok(made(Profiler::every(every))),
            _ => Err(PyValueError::new_err("give steps, from 1, or range, and not both")),
        }
    }

    #[staticmethod]
    #[pyo3(signature = (name, higher, least, patience, steps, secs))]
    fn early_stopping(
        name: String,
        higher: bool,
        least: f64,
        patience: u64,
        steps: Option<u64>,
        secs: Option<f64>,
    ) -> PyResult<SessionHook> {
        let better = if higher { Better::Higher } else { Better::Lower };
        Ok(made(EarlyStopping::new(name, better, least, patience, period(steps, secs)?)))
    }

    /// The session begins after this many steps.
    fn begin(&self, step: u64) -> Vec<Wanted> {
        given(self.lock().begin(step))
    }

    fn before(&self, step: u64) -> Vec<Wanted> {
        given(self.lock().before(step))
    }

    /// A step has ended, this many seconds after the session began, with these values.
    fn after(&self, step: u64, seconds: f64, values: Vec<(String, f64)>) -> Vec<Wanted> {
        let now = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        given(self.lock().after(&StepInfo { step, now, values: &values }))
    }

    fn end(&self, step: u64) -> Vec<Wanted> {
        given(self.lock().end(step))
    }
}
