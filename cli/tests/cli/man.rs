//! Help and manual pages.

use crate::support::Place;

/// Calls `visit` with each command, as its words, and its `--help`.
fn each_command(place: &Place, words: &[String], visit: &mut dyn FnMut(&[String], &str)) {
    let help = place.run(&[words, &["--help".to_owned()]].concat()).assert_success().out;
    visit(words, &help);
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // An entry has two spaces before it; lines that go on have more.
    for line in listed.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  ")) {
        match line.split(' ').next() {
            Some("" | "help") | None => {}
            Some(name) => each_command(place, &[words, &[name.to_owned()]].concat(), visit),
        }
    }
}

/// The options that entries of a help text begin with.
fn options(help: &str) -> Vec<String> {
    let entries = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = entries.flat_map(|line| line.split([' ', ',', '=', '[']).take(3));
    words.filter(|word| word.starts_with("--") && word.len() > 2).map(str::to_owned).collect()
}

#[test]
fn every_subcommand_and_option_has_its_manual_page() {
    let place = Place::new();
    place.run(&["man", "new/man1"]).assert_success();
    let mut pages = Vec::new();
    let mut found = 0;
    each_command(&place, &[], &mut |words, help| {
        let page = [&["portcullis".to_owned()], words].concat().join("-") + ".1";
        let text = place.text(&format!("new/man1/{page}")).replace("\\-", "-");
        assert!(text.contains(".TH ") && text.contains(".SH DESCRIPTION"), "{page}: {text}");
        for option in options(help) {
            assert!(text.contains(&option), "{page} lacks {option}");
            found += 1;
        }
        pages.push(page);
    });
    for page in ["portcullis.1", "portcullis-run.1", "portcullis-filters.1", "portcullis-ctl-map-get.1"] {
        assert!(pages.iter().any(|it| it == page), "{page}: {pages:?}");
    }
    assert!(found > 100, "{found}");
    let mut written: Vec<_> = std::fs::read_dir(place.path("new/man1"))
        .unwrap()
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    written.sort();
    pages.sort();
    assert_eq!(written, pages);
    place.file("file", "");
    place.run(&["man", "file"]).assert_failure(1, &["cannot write manual pages to file: "]);
}

#[test]
fn short_help_fits_a_screen() {
    let place = Place::new();
    each_command(&place, &[], &mut |words, _| {
        let help = place.run(&[words, &["-h".to_owned()]].concat()).assert_success().out;
        assert!(help.lines().count() <= 50, "{words:?} has {} lines:\n{help}", help.lines().count());
        // clap does not wrap the usage.
        let mut lines = help.lines().filter(|line| !line.starts_with("Usage:"));
        assert!(lines.all(|line| line.chars().count() <= 100), "{help}");
    });
}
