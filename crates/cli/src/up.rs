//! The words of `outrider up`: what is served, what changed, what Envoy logs. Running a gateway is
//! `outrider-supervisor`'s.

pub(crate) mod chain;
pub(crate) mod changes;
pub(crate) mod gateway;
pub(crate) mod log_view;
pub(crate) mod served;
