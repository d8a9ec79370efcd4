//! Long simulation: `cargo run -p forgeyard-testkit --example soak -- [STEPS] [FIRST_SEED]`.

use forgeyard_testkit::sim::{Settings, run};

fn main() -> std::process::ExitCode {
    let number = |place| std::env::args().nth(place).and_then(|text| text.parse::<u64>().ok());
    let (steps, first) = (number(1).unwrap_or(1_000_000), number(2).unwrap_or(0));
    let (mut done, mut seed, mut decisions) = (0, first, 0);
    while done < steps {
        let report = run(Settings { seed, steps: 5_000.min(steps - done), bug: None });
        if let Some((step, text)) = report.broken {
            println!("seed {seed}, step {step}: {text}");
            return std::process::ExitCode::FAILURE;
        }
        done += report.steps;
        decisions += report.decisions;
        seed += 1;
        println!("{done} of {steps} steps, {decisions} decisions, seeds {first} to {}: no invariant broken", seed - 1);
    }
    std::process::ExitCode::SUCCESS
}
