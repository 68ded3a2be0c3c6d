//! The program comes with the hourly run.

fn main() {}
