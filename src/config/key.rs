//! Where a key is, as a section of the settings says it.

/// Checks `…_file` and `…_command` of a setting such as `resend.api_key`, whose keys begin with `prefix`. A path and a program are
/// named in messages; a key must not be (C070). An error is a reason in words.
pub(super) fn check(
    setting: &str,
    prefix: &str,
    file: Option<&String>,
    command: Option<&Vec<String>>,
) -> Result<(), String> {
    let is_key =
        |text: &&String| text.trim().starts_with(prefix) && text.len() >= 12 && !text.contains(['/', '.']);
    if file.as_ref().is_some_and(is_key) {
        return Err(format!("{setting}_file holds a key; it must name a file that holds it"));
    }
    if command.into_iter().flatten().any(|word| is_key(&word)) {
        return Err(format!("{setting}_command holds a key; it must name a program that prints it"));
    }
    if file.is_some() && command.is_some() {
        return Err(format!(
            "{setting}_file and {setting}_command are both set; keep the one that has the key"
        ));
    }
    if command.is_some_and(|command| command.first().is_none_or(|program| program.trim().is_empty())) {
        return Err(format!(
            "{setting}_command is empty; it is a list, the program first: [\"pass\", \"show\", \"shop\"]"
        ));
    }
    Ok(())
}
