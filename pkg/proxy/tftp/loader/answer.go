package loader

import "github.com/tinkerbell/stack/internal/metric"

// Answer says whether a loader is served from memory, or why the server is asked.
type Answer uint8

// Answers. docs/tftp.md has a row for each.
const (
	Memory      Answer = iota // served from memory
	Checking                  // not compared with the server's within the last minute: that is done now
	Changed                   // the server has just given another one
	Differs                   // the server gives more than one of the name
	Absent                    // the server does not have it by HTTP
	Unreachable               // the server does not answer by HTTP
	Full                      // more names are asked for than are looked up
)

// Answers are their names.
var Answers = metric.Enum[Answer]{"memory", "checking", "changed", "differs", "absent", "unreachable", "full"}

// String is the answer as a metric's label.
func (a Answer) String() string { return Answers.Name(a) }
