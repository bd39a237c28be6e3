//! Addresses for servers that are about to start.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Ports that this process has been given.
static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Attempts to get a port that was not given before.
const ATTEMPTS: usize = 1000;

/// First port that is given: those below belong to well-known services.
const FIRST: u16 = 10_240;

/// Fewest ports below the ephemeral ones for which it is worth to look there.
const ENOUGH: usize = 4096;

/// Returns an address of 127.0.0.1 on which nothing listens now, and which this process has not been given before.
///
/// Its port is below the ephemeral ones, so no outgoing connection and no server that asks for port 0 takes it
/// meanwhile: it refuses connections until something is started on it by its number. Where the machine has made all
/// ports ephemeral, it is an ephemeral one.
///
/// # Errors
/// Loopback has no free port.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    let ports = fixed_ports();
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    for _ in 0..ATTEMPTS {
        let port = if ports.len() < ENOUGH {
            0
        } else {
            fastrand::u16(ports.clone())
        };
        let Ok(socket) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) else {
            continue;
        };
        let address = socket.local_addr()?;
        if given.insert(address.port()) {
            return Ok(address);
        }
    }
    anyhow::bail!("no port of 127.0.0.1 is left that was not used before")
}

/// Ports that the system gives to nobody by itself.
fn fixed_ports() -> Range<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let ephemeral: Option<u16> = range
        .split_whitespace()
        .next()
        .and_then(|first| first.parse().ok());
    FIRST..ephemeral.unwrap_or(FIRST).max(FIRST)
}

/// Returns addresses on which nothing listens now, each another one. They are not of 127.0.0.1 but of a loopback address of this
/// process's own: other processes, and outgoing connections, take ports of that one, and Envoy needs a while until it takes these.
///
/// # Errors
/// The loopback address has too few free ports.
pub(crate) fn own_addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let [_, high, middle, low] = std::process::id().to_be_bytes();
    let loopback = Ipv4Addr::new(127, 64 | high, middle, low);
    // All are held until all are there: the system hands out a port again once it is free.
    let sockets: Result<Vec<_>, _> = (0..count)
        .map(|_| TcpListener::bind((loopback, 0)))
        .collect();
    let addresses: Result<Vec<_>, _> = sockets?.iter().map(TcpListener::local_addr).collect();
    Ok(addresses?)
}

/// One of [`own_addresses`], which was not given before.
///
/// # Errors
/// The loopback address has no free port.
pub(crate) fn own_address() -> anyhow::Result<SocketAddr> {
    for _ in 0..ATTEMPTS {
        for address in own_addresses(1)? {
            let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
            if given.insert(address.port()) {
                return Ok(address);
            }
        }
    }
    anyhow::bail!("this process's loopback address has no port left that was not used before")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_given_twice() {
        let addresses: BTreeSet<_> = (0..500).map(|_| free_address().unwrap()).collect();
        assert_eq!(addresses.len(), 500);
        let own: BTreeSet<_> = (0..50).map(|_| own_address().unwrap()).collect();
        assert_eq!(own.len(), 50);
        assert_eq!(own_addresses(50).unwrap().len(), 50);
        assert!(own.iter().all(|address| address.ip().is_loopback()));
        let fixed = fixed_ports();
        assert!(
            fixed.len() < ENOUGH
                || addresses
                    .iter()
                    .all(|address| fixed.contains(&address.port()))
        );
        assert!(addresses.is_disjoint(&own));
    }
}
