package ipxe

import (
	"slices"
	"strings"
)

// aside finds the lines that nothing on the default way through a script leads to, with the label before each. A person
// may choose them in a menu, or nobody ever does. Where a jump depends on what is not known, no line is aside.
func aside(lines []string) map[int]string {
	labels, before := map[string]int{}, make([]string, len(lines))
	for i, line := range lines {
		if i > 0 {
			before[i] = before[i-1]
		}
		if words := strings.Fields(line); len(words) > 0 && strings.HasPrefix(words[0], ":") {
			before[i] = words[0][1:]
			if _, twice := labels[before[i]]; !twice {
				labels[before[i]] = i
			}
		}
	}
	chosen := choices(lines)
	reached := make([]bool, len(lines))
	for open := []int{0}; len(open) > 0; {
		i := open[len(open)-1]
		open = open[:len(open)-1]
		if i >= len(lines) || reached[i] {
			continue
		}
		reached[i] = true
		jumps, ends := leads(strings.Fields(lines[i]))
		for _, label := range jumps {
			if name, variable := strings.CutPrefix(label, "${"); variable {
				label = chosen[strings.TrimSuffix(name, "}")]
			}
			to, known := labels[label]
			if !known {
				return nil
			}
			open = append(open, to)
		}
		if !ends {
			open = append(open, i+1)
		}
	}
	left := map[int]string{}
	for i, was := range reached {
		if !was {
			left[i+1] = before[i]
		}
	}
	return left
}

// leads are the labels that a line may jump to, and whether nothing goes on to the next line.
func leads(words []string) (jumps []string, ends bool) {
	if len(words) == 0 || words[0][0] == '#' {
		return nil, false
	}
	for i, w := range words {
		if w == "goto" && i+1 < len(words) {
			jumps = append(jumps, words[i+1])
		}
	}
	// The line goes on to the next one where the last command of some alternative leaves it there.
	for part := range strings.SplitSeq(" "+strings.Join(words, " ")+" ", " || ") {
		last := strings.Fields(part[strings.LastIndex(part, " && ")+1:])
		if len(last) > 0 && last[0] == "&&" {
			last = last[1:]
		}
		if len(last) == 0 || !slices.Contains([]string{"goto", "exit", "reboot", "poweroff"}, last[0]) {
			return jumps, false
		}
	}
	return jumps, true
}

// choices are what a menu puts into its variables where nobody presses a key: the default, else the first item.
func choices(lines []string) map[string]string {
	chosen, first := map[string]string{}, ""
	for _, line := range lines {
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "menu":
			first = ""
		case "item":
			if label := operand(words[1:]); first == "" {
				first = label
			}
		case "choose":
			named := first
			for i, w := range words {
				if value, joined := strings.CutPrefix(w, "--default="); joined {
					named = value
				} else if (w == "--default" || w == "-d") && i+1 < len(words) {
					named = words[i+1]
				}
			}
			if name := operand(words[1:]); name != "" {
				chosen[name] = named
			}
		}
	}
	return chosen
}

// operand is the first word that is neither an option nor an option's value; empty where there is none, as for a gap.
func operand(words []string) string {
	for i := 0; i < len(words); i++ {
		switch w := words[i]; {
		case w == "--gap" || w == "-g":
			return ""
		case w == "--key" || w == "-k" || w == "--default" || w == "-d" || w == "--timeout" || w == "-t" ||
			w == "--menu" || w == "-m":
			i++
		case !strings.HasPrefix(w, "-"):
			return w
		}
	}
	return ""
}
