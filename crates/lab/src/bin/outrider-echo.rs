//! An upstream that tells what reached it, for trying a gateway by hand.

use std::io::Write as _;
use std::net::SocketAddr;

use anyhow::Context as _;
use clap::Parser;
use outrider_lab::echo::{Echo, EchoOptions};

/// An upstream that tells what reached it: HTTP/1.1 and HTTP/2 without TLS, on one port.
#[derive(Debug, Parser)]
#[command(
    name = "outrider-echo",
    version,
    after_help = "\
Paths that do something else than describe the request:
  /status/NNN  /delay/MS  /bytes/N[?chunked]  /echo[?whole]  /trailers[?name=value]  /headers?name=value
  /slow-body?chunks=N&interval_ms=M&size=S  /reset  /reset-stream  /cut/N
Request headers that do so on any path:
  x-echo-path: /bytes/N    x-echo-status: NNN    x-echo-delay-ms: MS

Example:
  outrider-echo --listen 127.0.0.1:10080 --name echo"
)]
struct Arguments {
    /// Where to listen; port 0 for any that is free.
    #[arg(long, default_value = "127.0.0.1:10080", value_name = "ADDRESS")]
    listen: SocketAddr,
    /// Its name, sent in the response header x-upstream.
    #[arg(long, default_value = "echo")]
    name: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let echo = Echo::start_with(EchoOptions {
        listen: arguments.listen,
        keep: 0,
        ..EchoOptions::named(&arguments.name)
    })
    .await?;
    writeln!(
        std::io::stdout(),
        "{} listens on http://{} (Ctrl-C stops it)",
        arguments.name,
        echo.address()
    )?;
    tokio::signal::ctrl_c()
        .await
        .context("cannot wait for Ctrl-C")?;
    echo.stop().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn arguments_are_sound() {
        Arguments::command().debug_assert();
    }
}
