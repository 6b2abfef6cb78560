package netboot

import (
	"errors"
	"fmt"
	"strings"
)

// Script is what an iPXE script leads to when every command in it succeeds.
type Script struct {
	Kernel string // URL
	Args   string // kernel command line
	Initrd string // URL
}

// ParseScript runs an iPXE script as far as it is needed to find the kernel: "set" and "kernel" and "initrd", with
// ${...} replaced. Of "a && b || c", which is about errors, it takes a.
func ParseScript(text string) (Script, error) {
	if !strings.HasPrefix(text, "#!ipxe") {
		return Script{}, errors.New("failed to parse script: it does not begin with #!ipxe")
	}
	var script Script
	vars := map[string]string{}
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		line, err := expand(strings.TrimSpace(line), vars)
		if err != nil {
			return Script{}, err
		}
		words := strings.Fields(line)
		for i, word := range words {
			if word == "&&" || word == "||" || word == ";" {
				words = words[:i]
				break
			}
		}
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "set":
			name, _, _ := strings.Cut(words[1], ":") // ":int32" is a type
			vars[name] = strings.Join(words[2:], " ")
		case "kernel":
			script.Kernel, script.Args = words[1], strings.Join(words[2:], " ")
		case "initrd":
			script.Initrd = words[1]
		}
	}
	if script.Kernel == "" || script.Initrd == "" {
		return Script{}, fmt.Errorf("failed to parse script: kernel %q, initrd %q", script.Kernel, script.Initrd)
	}
	return script, nil
}

func expand(line string, vars map[string]string) (string, error) {
	const most = 64 << 10
	var out strings.Builder
	for {
		before, rest, ok := strings.Cut(line, "${")
		out.WriteString(before)
		if !ok {
			return out.String(), nil
		}
		name, after, ok := strings.Cut(rest, "}")
		if !ok {
			return "", fmt.Errorf("failed to parse script: no } in %q", line)
		}
		out.WriteString(vars[name])
		if out.Len() > most {
			return "", errors.New("failed to parse script: a line is too long")
		}
		line = after
	}
}
