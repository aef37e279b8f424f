package v1beta1

// DomainMappingFinalizer keeps a deleted DomainMapping until its claim is released.
const DomainMappingFinalizer = "domainmappings." + GroupName
