//! Whether Envoy will be able to listen, asked before it is started: its own answer comes late and
//! names no line.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::bail;
use outrider_gateway::plan::Plan;

use crate::places;

/// Fails when Envoy could not listen where the plan says, naming the line in the gateway's file.
pub(crate) fn check(file: &Path, plan: &Plan) -> anyhow::Result<()> {
    check_added(file, plan, &|_| false)?;
    let Some(why) = plan.admin.and_then(obstacle) else {
        return Ok(());
    };
    let path = ["gateway".into(), "admin".into()];
    bail!(
        "{}: {why}; free it, or give the admin interface another address",
        places::place(file, &path)
    )
}

/// As [`check`], of the listeners whose addresses are not served.
pub(crate) fn check_added(
    file: &Path,
    plan: &Plan,
    is_served: &dyn Fn(SocketAddr) -> bool,
) -> anyhow::Result<()> {
    for (index, listener) in plan.listeners.iter().enumerate() {
        if !is_served(listener.address)
            && let Some(why) = obstacle(listener.address)
        {
            bail!(
                "{}: {why}; free it, or give listener {} another address",
                places::place(file, &places::listener(index, &["address"])),
                listener.name
            );
        }
    }
    Ok(())
}

/// Why nobody can listen at `address`, or nothing if it is free. The socket is closed again at once;
/// it never accepted, so the port stays free.
pub(crate) fn obstacle(address: SocketAddr) -> Option<String> {
    let error = TcpListener::bind(address).err()?;
    Some(match error.kind() {
        ErrorKind::AddrInUse => format!("{address} is in use by another process"),
        ErrorKind::PermissionDenied => {
            format!("this user may not listen at {address}; ports below 1024 need a privilege")
        }
        ErrorKind::AddrNotAvailable => format!("this machine does not have the address {address}"),
        _ => format!("nobody can listen at {address}: {error}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_a_taken_port_from_a_free_one() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert_eq!(
            obstacle(address),
            Some(format!("{address} is in use by another process"))
        );
        drop(taken);
        assert_eq!(obstacle(address), None);
        assert_eq!(
            obstacle("192.0.2.1:9".parse().unwrap()).unwrap(),
            "this machine does not have the address 192.0.2.1:9"
        );
    }
}
