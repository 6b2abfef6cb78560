package loader

import "github.com/tinkerbell/stack/internal/metric"

// Answer says whether a loader is served from memory, or why the server is asked.
type Answer uint8

// Answers. docs/tftp.md has a row for each.
const (
	Memory      Answer = iota // served from memory
	Checking                  // not read from the server yet: that is done now
	Differs                   // its endpoints give more than one of the name
	Absent                    // the server does not have it
	Unreachable               // the server did not answer, and nothing is kept
	Full                      // more names are asked for than are looked up
)

// Answers are their names.
var Answers = metric.Enum[Answer]{"memory", "checking", "differs", "absent", "unreachable", "full"}

// String is the answer as a metric's label.
func (a Answer) String() string { return Answers.Name(a) }
