// Package fault has the faults of a configuration, by its fields.
package fault

import "fmt"

// Fault is a fault of one field of a configuration.
type Fault struct {
	// Field is the field's name.
	Field string
	// Text describes the fault of its value.
	Text string
}

func (f *Fault) Error() string { return f.Field + ": " + f.Text }

// New makes a fault of a field.
func New(field, format string, args ...any) error {
	return &Fault{Field: field, Text: fmt.Sprintf(format, args...)}
}
