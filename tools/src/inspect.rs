//! wait
use clap::Args;
/// x
#[derive(Debug, Args)]
pub struct InspectArguments {}
pub fn run(_: &InspectArguments) -> feedline_loader::Result<()> {
    Ok(())
}
