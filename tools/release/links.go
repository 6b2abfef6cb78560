package main

import (
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	source = "https://github.com/tinkerbell/stack"
	raw    = "https://raw.githubusercontent.com/tinkerbell/stack"
	// place is where the chart lies in the repository.
	place = "charts/stack"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s#]*)(#[^)\s]*)?\)`)
	// document is a document's name in text, such as "(docs/chart.md)", that no URL and no path stands before.
	document = regexp.MustCompile(`(^|[^\w/.-])(docs/[\w./-]+\.(?:md|json))`)
)

// reference is what a version's documents are found by: its tag, or its commit.
func reference(version, commit string) string {
	if semver.MatchString(version) && strings.HasPrefix(version, "v") {
		return version
	}
	return commit
}

// pinLinks makes what a packaged chart says of documents links into this version's: relative links of its README, documents
// that are named in notes, refusals and descriptions, and links to the main branch.
func pinLinks(directory, ref string) error {
	return filepath.WalkDir(directory, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		return edit(name, func(text string) (string, error) {
			if filepath.Base(name) == "README.md" {
				text = pinMarkdown(text, place, ref)
			}
			text = strings.ReplaceAll(text, source+"/blob/main/", source+"/blob/"+ref+"/")
			text = strings.ReplaceAll(text, source+"/tree/main/", source+"/tree/"+ref+"/")
			text = strings.ReplaceAll(text, raw+"/main/", raw+"/"+ref+"/")
			return document.ReplaceAllString(text, "${1}"+source+"/blob/"+ref+"/${2}"), nil
		})
	})
}

// pinMarkdown makes the relative links of a document in a folder of the repository absolute ones.
func pinMarkdown(text, folder, ref string) string {
	return markdownLink.ReplaceAllStringFunc(text, func(link string) string {
		match := markdownLink.FindStringSubmatch(link)
		target, anchor := match[1], match[2]
		if target == "" || strings.Contains(target, "://") {
			return link
		}
		kind := "blob"
		if path.Ext(target) == "" {
			kind = "tree"
		}
		return "](" + source + "/" + kind + "/" + ref + "/" + path.Join(folder, target) + anchor + ")"
	})
}
