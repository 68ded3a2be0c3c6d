//! Where a key is, as a section of the settings says it.

/// Checks `api_key_file` and `api_key_command` of a section, whose keys begin with `prefix`. A path and a program are
/// named in messages; a key must not be (C070). An error is a reason in words.
pub(super) fn check(
    section: &str,
    prefix: &str,
    file: Option<&String>,
    command: Option<&Vec<String>>,
) -> Result<(), String> {
    let is_key =
        |text: &&String| text.trim().starts_with(prefix) && text.len() >= 12 && !text.contains(['/', '.']);
    if file.as_ref().is_some_and(is_key) {
        return Err(format!("{section}.api_key_file holds a key; it must name a file that holds it"));
    }
    if command.into_iter().flatten().any(|word| is_key(&word)) {
        return Err(format!("{section}.api_key_command holds a key; it must name a program that prints it"));
    }
    if file.is_some() && command.is_some() {
        return Err(format!(
            "{section}.api_key_file and {section}.api_key_command are both set; keep the one that has the key"
        ));
    }
    if command.is_some_and(|command| command.first().is_none_or(|program| program.trim().is_empty())) {
        return Err(format!(
            "{section}.api_key_command is empty; it is a list, the program first: [\"pass\", \"show\", \"{section}\"]"
        ));
    }
    Ok(())
}
