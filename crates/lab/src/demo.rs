//! What `make demo` shows: the quickstart example on ports of its own, driven step by step, each
//! printed claim checked against the real answer. A wrong answer ends it with what was expected.
//!
//! It knows the command only as a user does: by its arguments, its output and its signals.

pub(crate) mod gateway;
mod story;
mod workspace;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;

use crate::client::Target;
use crate::echo::Echo;
use gateway::Gateway;
use story::Story;
use workspace::Workspace;

/// How long the gateway may take until it answers; a cold machine reads Envoy's 100 MB first.
const READY: Duration = Duration::from_mins(1);

/// What the demonstration is run with.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// The `outrider` command.
    pub outrider: PathBuf,
    /// The folder of the quickstart example.
    pub example: PathBuf,
}

/// Runs the demonstration and tells it to `out`. An error says what was expected and what came.
pub async fn run(options: &DemoOptions, out: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let echo = Echo::start("echo").await?;
    let workspace = Workspace::copy(&options.example, echo.address())?;
    writeln!(
        out,
        "Outrider: stock Envoy, plugins at three scopes, changed while traffic flows.\n"
    )?;
    writeln!(
        out,
        "  upstream  http://{} (an echo service)",
        echo.address()
    )?;
    let mut gateway = Gateway::start(&options.outrider, &workspace.file())?;
    let told = tell(&mut gateway, &workspace, &echo, out).await;
    let stopped = gateway.stop().await;
    told.map_err(|error| {
        let said = gateway.last_lines(20);
        anyhow::anyhow!("{error:#}\n\nThe last lines of the command:\n{said}")
    })?;
    stopped?;
    echo.stop().await;
    writeln!(out, "\nCtrl-C to the command: Envoy drained and stopped.\n")?;
    out.write_all(NEXT.as_bytes())?;
    Ok(())
}

async fn tell(
    gateway: &mut Gateway,
    workspace: &Workspace,
    echo: &Echo,
    out: &mut (dyn Write + Send),
) -> anyhow::Result<()> {
    let address = workspace.gateway();
    let took = gateway
        .wait_ready(address, READY)
        .await
        .context("the gateway did not become ready")?;
    writeln!(
        out,
        "  gateway   http://{address} (outrider up {}; ready after {:.1} s)",
        workspace.file().display(),
        took.as_secs_f64()
    )?;
    let mut story = Story::begin(Target::http1(address), out).await?;
    story.plugins(echo).await?;
    story.changes(workspace, gateway).await
}

const NEXT: &str = "\
Try next, from the repository's root:
  target/release/outrider-echo                                      the upstream (terminal 1)
  target/release/outrider up examples/quickstart/outrider.yaml      the gateway (terminal 2)
  curl -i -u alice:secret localhost:10000/cart                      then edit the file, save, ask again
  target/release/outrider explain examples/quickstart/outrider.yaml --host localhost --path /cart
  target/release/outrider render envoy examples/quickstart/outrider.yaml --static
  make demo-lanes                                                   one version of a whole chain of services, by a header
  examples/quickstart/README.md, examples/scopes, examples/tls      more to read and run
";
