//! A whole Istio on one machine: API server with etcd, istiod, agents with certificates from istiod's authority, stock Envoys,
//! and iptables capture in network namespaces.
//!
//! Everything runs in network namespaces of one run, named `or-<process>` and `or-<process>-<pod>`: the run's own has a
//! bridge and the control plane, each pod has one behind it. Nothing leaves them. All processes are in a process namespace
//! that ends with the run, so none outlives it, however it ends.

pub mod checks;
pub mod control_plane;
pub mod mesh;
pub mod network;
pub mod pod;
pub mod process;
pub mod programs;
