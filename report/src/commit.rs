//! Reads the commit of a checkout from its `.git`, without git. The build script includes this
//! file.

use std::fs;
use std::path::{Path, PathBuf};

/// A commit, and the files that determine it.
#[derive(Debug, PartialEq, Eq)]
pub struct CommitId {
    /// Commit hash.
    pub commit: String,
    /// Existing files and folders of which one changes whenever the checkout moves to another
    /// commit.
    pub sources: Vec<PathBuf>,
}

/// Reads the commit of the checkout with this `.git`: a folder, or in a worktree a file that
/// names one. `None` if there is no commit or its format is unknown.
pub fn read_commit(git: &Path) -> Option<CommitId> {
    let mut sources = Vec::new();
    let own = match fs::read_to_string(git) {
        Ok(text) => {
            sources.push(git.to_owned());
            git.parent()?.join(text.strip_prefix("gitdir:")?.trim())
        }
        Err(_) => git.to_owned(),
    };
    // A worktree has its own HEAD, but shares branches with the others.
    let common = match fs::read_to_string(own.join("commondir")) {
        Ok(text) => own.join(text.trim()),
        Err(_) => own.clone(),
    };
    let mut text = read(&own.join("HEAD"), &mut sources)?;
    // A branch may be a symbolic reference; git follows up to five.
    for _ in 0..5 {
        let Some(name) = text.strip_prefix("ref:").map(str::trim) else { break };
        let is_name = !name.is_empty() && !Path::new(name).is_absolute() && !name.contains("..");
        let places = [own.join(name), common.join(name)];
        let loose = places.iter().filter(|_| is_name).find_map(|place| read(place, &mut sources));
        text = match loose {
            Some(text) => text,
            None => {
                let packed = read(&common.join("packed-refs"), &mut sources)?;
                // A loose reference created later takes precedence.
                let folder = common.join(name);
                sources.extend(folder.ancestors().skip(1).find(|folder| folder.is_dir()).map(Path::to_owned));
                let named = |line: &&str| line.split_once(' ').is_some_and(|(_, of)| of.trim() == name);
                packed.lines().find(named)?.split_once(' ')?.0.to_owned()
            }
        };
    }
    let commit = text.trim();
    let is_hash = matches!(commit.len(), 40 | 64) && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| CommitId { commit: commit.to_owned(), sources })
}

fn read(path: &Path, sources: &mut Vec<PathBuf>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    sources.push(path.to_owned());
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "1111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222";

    /// A folder with these files in it.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    fn commit(files: &[(&str, &str)], git: &str) -> Option<String> {
        let folder = folder(files);
        let found = read_commit(&folder.path().join(git))?;
        assert!(found.sources.iter().all(|path| path.exists()), "{found:?}");
        Some(found.commit)
    }

    #[test]
    fn a_commit_is_that_of_head() {
        let packed = format!("# pack-refs with: peeled\n{TWO} refs/heads/mainly\n{ONE} refs/heads/main\n^{TWO}\n");
        let one = format!("{ONE}\n");
        let is_one = |files: &[(&str, &str)]| assert_eq!(commit(files, ".git").as_deref(), Some(ONE), "{files:?}");
        is_one(&[(".git/HEAD", &one)]);
        is_one(&[(".git/HEAD", "ref: refs/heads/a/b\n"), (".git/refs/heads/a/b", &one)]);
        is_one(&[(".git/HEAD", "ref: refs/heads/main\n"), (".git/packed-refs", &packed)]);
        // A loose reference is newer than a packed one.
        let old = format!("{TWO} refs/heads/main\n");
        is_one(&[(".git/HEAD", "ref: refs/heads/main\n"), (".git/refs/heads/main", &one), (".git/packed-refs", &old)]);
        is_one(&[
            (".git/HEAD", "ref: refs/heads/x\n"),
            (".git/refs/heads/x", "ref: refs/heads/main\n"),
            (".git/refs/heads/main", &one),
        ]);
    }

    #[test]
    fn a_worktree_has_a_head_of_its_own() {
        let tree = [
            ("tree/.git", "gitdir: ../main/.git/worktrees/tree\n"),
            ("main/.git/HEAD", "ref: refs/heads/main\n"),
            ("main/.git/refs/heads/main", TWO),
            ("main/.git/refs/heads/branch", ONE),
            ("main/.git/worktrees/tree/HEAD", "ref: refs/heads/branch\n"),
            ("main/.git/worktrees/tree/commondir", "../..\n"),
        ];
        assert_eq!(commit(&tree, "tree/.git").as_deref(), Some(ONE));
        assert_eq!(commit(&tree, "main/.git").as_deref(), Some(TWO));
    }

    #[test]
    fn invalid_checkouts_have_no_commit() {
        for files in [
            &[][..],
            &[(".git/HEAD", "")],
            &[(".git/HEAD", "1111")],
            &[(".git/HEAD", "ref: refs/heads/none")],
            &[(".git/HEAD", "ref: ../../secret"), (".git/packed-refs", "")],
            &[(".git/HEAD", "ref: refs/heads/x"), (".git/refs/heads/x", "ref: refs/heads/x")],
            &[(".git", "not a folder's name")],
            &[(".git", "gitdir: nowhere")],
        ] {
            assert_eq!(commit(files, ".git"), None, "{files:?}");
        }
    }

    #[test]
    fn a_branch_that_is_no_longer_packed_is_noticed() {
        let packed = format!("{ONE} refs/heads/main\n");
        let folder = folder(&[
            (".git/HEAD", "ref: refs/heads/main\n"),
            (".git/packed-refs", &packed),
            (".git/refs/heads/other", TWO),
        ]);
        let found = read_commit(&folder.path().join(".git")).unwrap();
        assert!(found.sources.contains(&folder.path().join(".git/refs/heads")), "{found:?}");
    }
}
