// Package jsonfinder finds numbers in a JSON body while it streams by, such as what an answer says that it cost.
package jsonfinder
