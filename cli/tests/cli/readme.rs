//! The examples in README.md and docs/guide/maps.md give the output that is shown.

use crate::support::{Place, sample, stock};

#[test]
fn the_filter_of_the_readme_gives_its_output() {
    let readme = include_str!("../../../README.md");
    let indented: String = readme.lines().filter_map(|l| l.strip_prefix("    ")).map(|l| format!("{l}\n")).collect();
    let start = indented.find("override server").unwrap();
    let end = indented.find("    $ portcullis run").or(indented.find("$ portcullis run")).unwrap();
    let place = Place::new();
    place.file("dns.wgsl", &indented[start..end]);
    let ran = place
        .run(&["run", "dns.wgsl", "--read", &sample(), "--write", "rest.pcap", "--write-redirect", "out"])
        .assert_success();
    // Up to the times, which differ.
    let counts: Vec<_> = ran.out.lines().skip(1).take_while(|line| !line.starts_with("time")).collect();
    assert!(counts.len() >= 8, "{}", ran.out);
    for line in counts {
        assert!(indented.lines().any(|shown| shown == line), "not in the README: {line}");
    }
    assert!(place.has("out/7.pcap"));
}

#[test]
fn the_maps_of_the_readme_are_dumped_as_shown() {
    let readme = include_str!("../../../README.md");
    let (_, shown) = readme.split_once("    $ cat blocked.csv\n").unwrap();
    let text: String = shown.lines().map_while(|l| l.strip_prefix("    ")).map(|l| format!("{l}\n")).collect();
    let (blocked, rest) = text.split_once("$ portcullis ").unwrap();
    let (command, hits) = rest.split_once("\n$ cat hits.csv\n").unwrap();
    let place = Place::new();
    place.file("blocked.csv", blocked);
    let (filter, sample) = (stock("blacklist"), sample());
    let with = |word| match word {
        "shaders/blacklist.wgsl" => filter.as_str(),
        "samples/mixed.pcap" => sample.as_str(),
        other => other,
    };
    place.run(&command.split_whitespace().map(with).collect::<Vec<_>>()).assert_success();
    assert_eq!(place.text("hits.csv"), hits);
}

#[test]
fn the_dumps_of_the_maps_page_are_as_shown() {
    let page = include_str!("../../../docs/guide/maps.md");
    let (_, section) = page.split_once("\n## From the command line\n").unwrap();
    let (section, _) = section.split_once("\n### ").unwrap();
    let indented: String = section.lines().filter_map(|l| l.strip_prefix("    ")).map(|l| format!("{l}\n")).collect();
    let (filter, shown) = indented.split_once("$ portcullis ").unwrap();
    let place = Place::new();
    place.file("accounts.wgsl", filter);
    std::fs::create_dir(place.path("samples")).unwrap();
    std::fs::copy(sample(), place.path("samples/mixed.pcap")).unwrap();
    let (run, checked) = shown.split_once("$ portcullis check accounts.wgsl\n").unwrap();
    let mut commands = run.split("$ head -n 3 ");
    place.run(&commands.next().unwrap().split_whitespace().collect::<Vec<_>>()).assert_success();
    let mut files = 0;
    for (file, head) in commands.map(|command| command.split_once('\n').unwrap()) {
        let dump = place.text(file);
        assert_eq!(dump.split_inclusive('\n').take(3).collect::<String>(), head, "{file}");
        files += 1;
    }
    let (first, last) = checked.split_once("  …\n").unwrap();
    let check = place.run(&["check", "accounts.wgsl"]).assert_success().out;
    assert!(check.starts_with(first) && check.ends_with(last), "{check}");
    assert_eq!(files, 2);
}

#[test]
fn the_csv_and_json_rows_of_the_maps_page_are_equal() {
    let page = include_str!("../../../docs/guide/maps.md");
    let (_, section) = page.split_once("\n### Map files\n").unwrap();
    let (section, _) = section.split_once("\n### ").unwrap();
    let indented: String = section.lines().filter_map(|l| l.strip_prefix("    ")).map(|l| format!("{l}\n")).collect();
    let (csv, json) = indented.split_at(indented.find('[').unwrap());
    let map = csv.split('`').nth(1).unwrap();
    let place = Place::new();
    let filter = place.file("f.wgsl", format!("{map}\nfn xdp_filter(pkt: u32) -> u32 {{ return XDP_PASS; }}"));
    let dump = |file: &str, content: &str| {
        std::fs::write(place.path(file), content).unwrap();
        let map = format!("blocked={file}");
        place.run(&["run", filter, "--read", &sample(), "--map", &map, "--dump-map", "blocked=o.csv"]).assert_success();
        place.text("o.csv")
    };
    let rows = "10.0.0.19,443,1,02:00:5e:10:00:00\n10.0.0.20,80,1,02:00:5e:10:00:01\n";
    let wanted = format!("address,port,action,station\n{rows}");
    assert_eq!([dump("a.csv", csv), dump("a.json", json)], [wanted.clone(), wanted]);
}
