package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var (
	// semver is the version of a release, or of a candidate for one. What "git describe" says of a commit is neither.
	semver = regexp.MustCompile(`^v?([0-9]+\.[0-9]+\.[0-9]+(?:-(?:alpha|beta|rc)[0-9.]*)?)$`)
	// number is a version without what follows it.
	number = regexp.MustCompile(`^(\d+\.\d+\.)(\d+)$`)
)

// chartVersion is the version of a chart whose Chart.yaml has the version own, for programs of a version. A release's is its
// tag's. Another commit's is below the version to come and above that of the commits before it, so that what keeps charts by
// version, as Argo CD and Flux do, sees each; the commit's "g" keeps one that has digits alone from being a number.
func chartVersion(own, programs string, count int, commit string) (string, error) {
	if match := semver.FindStringSubmatch(programs); match != nil {
		return match[1], nil
	}
	parts := number.FindStringSubmatch(own)
	if parts == nil {
		return "", fmt.Errorf("its version is %q, not three numbers", own)
	}
	if len(commit) < 12 || count < 1 {
		return "", fmt.Errorf("no commit and count for the version %q, which is no release's", programs)
	}
	// The version is out, and Chart.yaml does not have the next one yet.
	if strings.HasPrefix(programs, "v"+own+"-") {
		patch, err := strconv.Atoi(parts[2])
		if err != nil {
			return "", err
		}
		own = parts[1] + strconv.Itoa(patch+1)
	}
	version := fmt.Sprintf("%s-0.git.%d.g%s", own, count, commit[:12])
	if strings.HasSuffix(programs, "-dirty") {
		version += ".dirty"
	}
	return version, nil
}

// field is a key's value in Chart.yaml.
func field(text, key string) string {
	match := regexp.MustCompile(`(?m)^` + key + `: "?([^"\s]+)"?$`).FindStringSubmatch(text)
	if match == nil {
		return ""
	}
	return match[1]
}
