//! The parts of `outrider up`: what it watches, what it writes, what it says.

pub(crate) mod apply;
pub(crate) mod chain;
pub(crate) mod changes;
pub(crate) mod courier;
pub(crate) mod gateway;
pub(crate) mod log_view;
pub(crate) mod module;
pub(crate) mod places;
pub(crate) mod ports;
pub(crate) mod rendered;
pub(crate) mod served;
pub(crate) mod signals;
pub(crate) mod state;
pub(crate) mod watch;
