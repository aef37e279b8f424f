package v1

// SetDefaults_Configuration fills what a Configuration leaves out.
func SetDefaults_Configuration(c *Configuration) {
	c.Spec.Template.Spec.SetDefaults()
}
