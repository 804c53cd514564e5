//! Verdicts over windows and recordings that are made up here, where every figure is known; and over the recordings of
//! a real GPU that `FEEDLINE_TRACES` names, whole, thinned, cut, blurred and with figures taken away.

mod made;
mod recorded;
