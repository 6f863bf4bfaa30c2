// Package jsonfinder finds numbers in a JSON body while it is read, such as the cost in a response.
package jsonfinder
