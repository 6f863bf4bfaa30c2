// Package jsonfinder finds numbers in a JSON body while it streams by, such as what an answer says that it cost. Nothing
// uses it yet: it is for costs that are known only afterwards.
package jsonfinder
