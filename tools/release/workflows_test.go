package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rhysd/actionlint"
)

const root = "../.."

// targets are what make can be asked for.
func targets(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(root + "/make/*.mk")
	if err != nil {
		t.Fatal(err)
	}
	known := make(map[string]bool)
	for _, file := range append(files, root+"/Makefile") {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range regexp.MustCompile(`(?m)^([a-z0-9][a-z0-9 -]*):(?:[^=]|$)`).FindAllSubmatch(text, -1) {
			for _, target := range strings.Fields(string(match[1])) {
				known[target] = true
			}
		}
	}
	return known
}

var (
	// onlyMake is one command: make, and targets.
	onlyMake = regexp.MustCompile(`^make((?: [a-z0-9-]+)+)$`)
	// pinned is an action by its commit.
	pinned = regexp.MustCompile(`^([a-z0-9-]+/[a-z0-9-]+)@[0-9a-f]{40}$`)
)

// others are the actions that a workflow may use: bringing the source and Go, logging in, keeping files.
var others = map[string]bool{
	"actions/checkout": true, "actions/setup-go": true, "actions/cache": true, "actions/upload-artifact": true,
}

// faults are what is wrong with a workflow: what actionlint finds, and what this repository asks for besides.
func faults(t *testing.T, name string, text []byte, known map[string]bool) []string {
	t.Helper()
	linter, err := actionlint.NewLinter(io.Discard, &actionlint.LinterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found, err := linter.Lint(name, text, nil)
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, fault := range found {
		list = append(list, fault.Error())
	}
	workflow, _ := actionlint.Parse(text)
	if workflow == nil {
		return list
	}
	if p := workflow.Permissions; p == nil || p.All != nil || len(p.Scopes) > 0 {
		list = append(list, "it has permissions that all jobs share: set permissions: {}")
	}
	for id, job := range workflow.Jobs {
		if job.Permissions == nil || job.Permissions.All != nil {
			list = append(list, "job "+id+" does not name its permissions")
		}
		if builds, signs := rights(job); builds && signs {
			list = append(list, "job "+id+" builds, and has the identity that signs")
		}
		for _, step := range job.Steps {
			switch exec := step.Exec.(type) {
			case *actionlint.ExecRun:
				match := onlyMake.FindStringSubmatch(exec.Run.Value)
				if match == nil {
					list = append(list, "it runs more than make: "+exec.Run.Value)
					continue
				}
				for _, target := range strings.Fields(match[1]) {
					if !known[target] {
						list = append(list, "make has no target "+target)
					}
				}
			case *actionlint.ExecAction:
				match := pinned.FindStringSubmatch(exec.Uses.Value)
				switch {
				case match == nil:
					list = append(list, "no commit in "+exec.Uses.Value)
				case !others[match[1]]:
					list = append(list, "an action that is not make: "+exec.Uses.Value)
				case match[1] == "actions/checkout" && (exec.Inputs["persist-credentials"] == nil ||
					exec.Inputs["persist-credentials"].Value.Value != "false"):
					list = append(list, "checkout leaves credentials behind: set persist-credentials: false")
				}
			}
		}
	}
	return list
}

// rights tells whether a job builds what is released, and whether it may sign.
func rights(job *actionlint.Job) (builds, signs bool) {
	for _, step := range job.Steps {
		if exec, ok := step.Exec.(*actionlint.ExecRun); ok {
			builds = builds || regexp.MustCompile(`^make.* (publish|images|release-(images|chart|binaries))\b`).MatchString(exec.Run.Value)
		}
	}
	if job.Permissions != nil {
		_, signs = job.Permissions.Scopes["id-token"]
	}
	return builds, signs
}

func TestWorkflowsOnlyCallMake(t *testing.T) {
	files, err := filepath.Glob(root + "/.github/workflows/*")
	if err != nil || len(files) < 2 {
		t.Fatalf("workflows %v, %v", files, err)
	}
	known := targets(t)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, fault := range faults(t, file, text, known) {
			t.Errorf("%s: %s", file, fault)
		}
		// A commit says nothing to a reader: the version stands beside it.
		for _, line := range bytes.Split(text, []byte("\n")) {
			if bytes.Contains(line, []byte("uses:")) && !regexp.MustCompile(`@\S+ # v\d`).Match(line) {
				t.Errorf("%s: no version beside %s", file, bytes.TrimSpace(line))
			}
		}
	}
}

// What TestWorkflowsOnlyCallMake would find.
func TestFaultsOfWorkflowsAreFound(t *testing.T) {
	const good = `name: x
on: {push: {branches: [main]}}
permissions: {}
jobs:
  a:
    runs-on: ubuntu-24.04
    permissions: {contents: read}
    steps:
      - uses: actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1 # v7.0.1
        with: {persist-credentials: false}
      - run: make lint test
`
	known := targets(t)
	if list := faults(t, "x.yaml", []byte(good), known); len(list) > 0 {
		t.Errorf("faults of a good one: %q", list)
	}
	for name, test := range map[string]struct{ old, replacement, want string }{
		"another command": {"make lint test", "go test ./...", "more than make"},
		"a signer that builds": {
			"{contents: read}\n    steps:\n      - uses", "{contents: read, id-token: write}\n    steps:\n      - run: make publish\n      - uses",
			"has the identity that signs",
		},
		"a second one":   {"make lint test", "make lint && curl example", "more than make"},
		"no such target": {"make lint test", "make lint tests", "no target tests"},
		"a tag":          {"@3d3c42e5aac5ba805825da76410c181273ba90b1", "@v7", "no commit"},
		"another action": {"actions/checkout", "actions/github-script", "not make"},
		"credentials":    {"{persist-credentials: false}", "{fetch-depth: 0}", "credentials"},
		"permissions":    {"permissions: {}\n", "", "permissions"},
		"of a job":       {"permissions: {contents: read}", "env: {}", "job a"},
		"an unknown key": {"runs-on:", "runs-at: x\n    runs-on:", "runs-at"},
		"an expression":  {"make lint test", "make ${{ github.rf }}", "rf"},
	} {
		t.Run(name, func(t *testing.T) {
			list := faults(t, "x.yaml", []byte(strings.Replace(good, test.old, test.replacement, 1)), known)
			if got := strings.Join(list, "\n"); !strings.Contains(got, test.want) {
				t.Errorf("faults %q, want %q", got, test.want)
			}
		})
	}
}
