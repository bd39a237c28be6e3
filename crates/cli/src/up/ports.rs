//! Whether Envoy will be able to listen, asked before it is started: its own answer comes late and
//! names no line.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::bail;
use outrider_gateway::plan::Plan;

use crate::up::places;

/// Fails when Envoy could not listen where the plan says, naming the line in the gateway's file.
pub(crate) fn check(file: &Path, plan: &Plan) -> anyhow::Result<()> {
    let listeners = plan.listeners.iter().enumerate().map(|(index, listener)| {
        let path = places::listener(index, &["address"]);
        (
            listener.address,
            path,
            format!("listener {}", listener.name),
        )
    });
    let admin = plan.admin.map(|address| {
        let path = vec!["gateway".into(), "admin".into()];
        (address, path, "the admin interface".to_owned())
    });
    for (address, path, what) in listeners.chain(admin) {
        if let Some(why) = obstacle(address) {
            bail!(
                "{}: {why}; free it, or give {what} another address",
                places::place(file, &path)
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
